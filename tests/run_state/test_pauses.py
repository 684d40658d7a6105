"""Scopes of pauses: their names, and the entries that they cover."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.matrix.entry import Entry, read_entry
from dispatcher.run_state.facets.pauses import (
    Pause,
    method_scope,
    parse_values,
    pause_of_method,
    unpause_command,
    value_text,
    values_of,
)


def entry(**keys: Any) -> Entry:
    made, faults = read_entry({"job_id": "a", "method": "fft", **keys}, 0)
    assert made is not None and not faults
    return made


@pytest.mark.parametrize(
    ("values", "scope"),
    [
        ({}, "fft"),
        ({"lr": "1.0", "opt": "sgd"}, "fft:lr=1.0,opt=sgd"),
        ({"amp": None}, "fft:amp="),
        ({"layers": "[1, 2]"}, "fft:layers=[1, 2]"),
        ({"note": "a,b", "lr": "1"}, "fft:note=a\\,b,lr=1"),
    ],
)
def test_the_name_of_a_scope_says_its_values(values: dict[str, str | None], scope: str) -> None:
    assert method_scope("fft", values) == scope
    assert parse_values(scope) == values


def test_a_long_value_is_cut_and_stays_different() -> None:
    one, other = (method_scope("fft", {"command": f"python train.py {'--flag ' * 20}{n}"}) for n in (1, 2))
    assert one != other and len(one) < 60
    assert method_scope("fft", {"x": "a\nb\x1b[0m"}).isprintable()


def test_the_command_can_be_typed_into_a_shell() -> None:
    assert unpause_command("fft:lr=1.0") == "dispatcher unpause fft:lr=1.0"
    assert unpause_command("fft:note=a b") == "dispatcher unpause 'fft:note=a b'"


def test_a_pause_covers_the_values_alone() -> None:
    pause = Pause("fft:lr=1.0,amp=", "nan", "", {"lr": "1.0", "amp": None})
    assert pause.covers(entry(lr=1.0, seed=3))
    assert not pause.covers(entry(lr=0.1))
    assert not pause.covers(entry(lr=1.0, amp=True))
    of_host = Pause("host:h:fft", "lost", "")
    pauses = {pause.scope: pause, of_host.scope: of_host}
    assert pause_of_method(pauses, entry(lr=1.0)) == pause
    assert pause_of_method(pauses, entry(lr=0.1)) is None
    whole = Pause("fft", "by hand", "")
    assert pause_of_method({**pauses, "fft": whole}, entry(lr=0.1)) == whole


def test_nested_values_count_each_by_itself() -> None:
    made = entry(job="lab/train", config={"training": {"lr": 0.1, "steps": 5}}, seed=1, priority=3, needs=["b"])
    values = values_of(made)
    assert values == {"seed": "1", "job": "lab/train", "config.training.lr": "0.1", "config.training.steps": "5"}
    assert {key: value_text(made, key) for key in values} == values
    assert value_text(made, "config.training.wd") is None and value_text(made, "x.y") is None
