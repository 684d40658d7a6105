"""The journal's vocabulary is closed: a misspelt event or field of our own fails at once, before and while it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from dispatcher.errors import FormatError
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import DEFAULTS, Record, State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_SNIPPET = """
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.pauses import Paused
from dispatcher.run_state.states import State
from dispatcher.run_state.transaction import Transaction

def use(tx: Transaction) -> None:
    tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, pid=7, gpu=(2, 3), reason=None), extra={"note": 1})
    tx.note(Paused(scope="fft", why="five alike"))
    tx.change("a", Event.FAILED, Change(exit_cod=1))
    tx.change("a", Event.FAILD, Change(exit_code=1))
    tx.change("a", "failed", Change(exit_code=1))
    tx.change("a", Event.FAILED, {"exit_code": 1})
    tx.change("a", Event.FAILED, Change(exit_code="1"))
    tx.change("a", Event.FAILED, Change(state="failed"))
    tx.note(Paused(scop="fft"))
    tx.note("paused")
"""
# What the type checker says of each of the last lines of the snippet.
_EXPECTED = [
    'Unexpected keyword argument "exit_cod" for "Change"',
    '"type[Event]" has no attribute "FAILD"',
    'incompatible type "str"; expected "Event"',
    'incompatible type "dict[str, int]"; expected "Change"',
    'incompatible type "str"; expected "int | UnsetType | None"',
    'incompatible type "str"; expected "State | UnsetType"',
    'Unexpected keyword argument "scop" for "Paused"',
    'incompatible type "str"; expected "Note"',
]


def test_the_type_checker_refuses_what_is_misspelt(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(_SNIPPET)
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-error-summary",
        "--config-file",
        str(root / "pyproject.toml"),
        str(snippet),
    ]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    errors = [line for line in found.stdout.splitlines() if ": error:" in line]
    first = _SNIPPET.splitlines().index('    tx.change("a", Event.FAILED, Change(exit_cod=1))') + 1
    for number, expected in enumerate(_EXPECTED, first):
        said = [line for line in errors if f"snippet.py:{number}:" in line]
        assert any(expected in line for line in said), (number, expected, found.stdout, found.stderr)
    assert {line.split(":")[1] for line in errors} == {str(first + n) for n in range(len(_EXPECTED))}


@pytest.fixture
def store(layout: Layout) -> Store:
    store = Store(layout, by="pod-0")
    with store.transaction() as tx:
        tx.change("a", Event.QUEUED, Change(state=State.QUEUED))
    return store


def test_a_misspelt_field_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="exit_cod"):
        Change(exit_cod=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("event", ["failed", "faild", Event("faild"), None], ids=repr)
def test_only_an_event_that_is_known_can_be_written(store: Store, event: Any) -> None:
    before = store.layout.journal(1).read_bytes()
    with pytest.raises(TypeError, match="expected a member of Event"), store.transaction() as tx:
        tx.change("a", event, Change(state=State.HELD))
    assert store.layout.journal(1).read_bytes() == before
    assert store.records["a"].state is State.QUEUED


@pytest.mark.parametrize(
    ("change", "extra", "error"),
    [
        ({"state": "held"}, None, TypeError),
        (Change(), {"pid": 7}, TypeError),
        (Change(), {"rev": 7}, TypeError),
        (Change(pid="7"), None, FormatError),  # type: ignore[arg-type]
        (Change(state="quued"), None, ValueError),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_change_changes_nothing(store: Store, change: Any, extra: Any, error: type[Exception]) -> None:
    before = store.layout.journal(1).read_bytes()
    with pytest.raises(error), store.transaction() as tx:
        tx.change("a", Event.EDITED, change, extra=extra)
    assert store.layout.journal(1).read_bytes() == before
    assert store.records["a"] == Record(state=State.QUEUED, rev=1)


def test_a_change_has_every_field_of_a_record() -> None:
    assert set(Change.__struct_fields__) == set(DEFAULTS)
    hints, ours = get_type_hints(Record), get_type_hints(Change)
    for name in DEFAULTS:
        expected = hints[name] | msgspec.UnsetType
        assert ours[name] == (expected if name == "state" else expected | None), name


def test_both_changes_count_and_of_one_field_the_later() -> None:
    one, other = Change(pid=None, gpu=2, reason="lost"), Change(pid=7, reason=None)
    assert one | other == Change(pid=7, gpu=2, reason=None)
    assert other | one == Change(pid=None, gpu=2, reason="lost")
    assert one | Change() == Change() | one == one


def append(layout: Layout, line: dict[str, Any]) -> None:
    """As a newer dispatcher on another host would, whose head this one has not seen."""
    with open(layout.journal(1), "ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


@pytest.mark.parametrize("rotates", [False, True])
def test_what_a_newer_version_writes_is_kept(store: Store, rotates: bool) -> None:
    """Its event changes the record, its field stays with the record, and the history shows both word for word."""
    line = {"seq": 2, "at": "2026-06-17T22:48:00.123Z", "by": "newer", "job": "a", "event": "suspended"}
    append(
        store.layout, {**line, "set": {"state": "running", "attempt": 1, "suspended_by": "me"}, "data": {"for_s": 9}}
    )
    append(store.layout, {**line, "seq": 3, "job": None, "event": "rebalanced", "data": {"scope": "fft"}})
    with store.transaction() as tx:
        tx.change("a", Event.STARTED, Change(pid=4711))
    if rotates:
        assert store.rotate()
    reader = Store(store.layout, by="reader")
    reader.refresh()
    for records in (store.records, reader.records):
        assert records["a"] == Record(state=State.RUNNING, attempt=1, pid=4711, rev=4, extra={"suspended_by": "me"})
    lines = list(journal.history(store.layout))
    assert [line.event for line in lines] == ["queued", "suspended", "rebalanced", "started"]
    assert [line.event.is_known for line in lines] == [True, False, False, True]
    assert lines[1].set["suspended_by"] == "me"
    assert lines[1].data == {"for_s": 9}
    assert b'"event":"suspended"' in journal.encode(lines[1])
