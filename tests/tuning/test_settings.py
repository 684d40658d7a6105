"""tune.yaml: all faults at once, each with its place; what of it the journal keeps."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dispatcher.errors import ManifestError
from dispatcher.tuning.settings import SAMPLERS, Settings, accepts, read_settings

GOOD = """
name: s
defaults: {command: "true {lr}", lang: greek, env: {TOKEN: hunter2}}
derive: {output_dir: "/out/{job_id}"}
space: {lr: {log_uniform: [1e-5, 1e-2]}, act: {choice: [relu, {kind: gelu}, 1, true]}, layers: {integer: [2, 12]}}
objective: {value: loss, goal: min}
trials: 50
"""


def read(path: Path, text: str) -> Settings:
    path.write_text(text)
    return read_settings(path)


def test_a_study_and_what_it_leaves_out(tmp_path: Path) -> None:
    settings = read(tmp_path / "tune.yaml", GOOD)
    assert (settings.trials, settings.parallel, settings.sampler) == (50, 1, "tpe")
    assert settings.sampler_options == {"seed": 0, "startup": 10}
    entry = settings.entry(7, {"lr": 0.001, "act": "relu", "layers": 2})
    assert entry == {
        "method": "command", "command": "true {lr}", "lang": "greek", "env": {"TOKEN": "hunter2"}, "lr": 0.001,
        "act": "relu", "layers": 2, "study": "s", "trial": 7, "job_id": "s_0007", "output_dir": "/out/s_0007",
    }  # fmt: skip


def test_the_journal_gets_no_secret_and_reads_the_same_again(tmp_path: Path) -> None:
    settings = read(tmp_path / "tune.yaml", GOOD)
    found = settings.journalled()
    text = msgspec.json.encode(found)
    assert b"hunter2" not in text
    assert msgspec.json.decode(text) == found
    other = read(tmp_path / "tune.yaml", GOOD.replace("hunter2", "hunter3")).journalled()
    assert other["constants"] != found["constants"]


@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        ("[1e-5, 1e-2]", "[1e-4, 1e-2]", True),
        ("[1e-5, 1e-2]", "[5e-3, 1e-2]", False),
        ("integer: [2, 12]", "integer: [2, 3]", True),
        ("integer: [2, 12]", "integer: [3, 12]", False),
        ("[relu, ", "[tanh, relu, ", True),
        ("[relu, ", "[tanh, ", False),
        ("lang: greek", "lang: hindi", False),
        ("lang: greek", "lang: greek, priority: 3", True),
        ("trials: 50", "trials: 60", True),
        ("act: {choice", "size: {choice", False),
    ],
)
def test_a_trial_counts_where_it_could_have_been_suggested(tmp_path: Path, old: str, new: str, is_kept: bool) -> None:
    before = read(tmp_path / "tune.yaml", GOOD).journalled()
    assert old in GOOD
    after = read(tmp_path / "tune.yaml", GOOD.replace(old, new)).journalled()
    assert accepts(after, before, {"lr": 0.001, "act": "relu", "layers": 2}) is is_kept


def test_true_and_1_are_different_choices(tmp_path: Path) -> None:
    settings = read(tmp_path / "tune.yaml", GOOD)
    act = settings.space["act"]
    assert [act.index(value) for value in ("relu", {"kind": "gelu"}, 1, True, 1.0, "tanh")] == [0, 1, 2, 3, None, None]


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        read(
            tmp_path / "tune.yaml",
            """
name: "no name"
nmae: x
defaults: {trial: 3, lr: 1}
space: {lr: {log_uniform: [0, 1]}, dropout: {unifrom: [0, 1]}, gpus: {choice: [1, 2]}, lr2: {uniform: [0, 1]},
  n: {integer: [1, 100000000000000000000000000]}}
objective: {vlaue: loss, goal: minimum}
trials: 0
parallel: many
sampler: {tpe: {seeds: 1, startup: -1}}
""",
        )
    text = "\n".join(caught.value.problems)
    for wanted in (
        'name = "no name": expected letters',
        "nmae: unknown key (did you mean 'name'?)",
        "defaults.trial: is set by the expansion",
        'space.lr = {"log_uniform": [0, 1]}: log_uniform: 0 has no logarithm',
        "unknown distribution \"unifrom\" (did you mean 'uniform'?)",
        "integer: expected ends from -2^53 to 2^53",
        "space: gpus is a key of every entry",
        "lr: is in defaults and in space",
        "objective.vlaue: unknown key (did you mean 'value'?)",
        "objective.value: is missing",
        'objective.goal = "minimum": expected min or max',
        "trials = 0: expected a whole number",
        'parallel = "many": expected a whole number',
        "sampler.tpe.seeds: unknown key (did you mean 'seed'?)",
        "sampler.tpe.startup = -1: expected a whole number",
    ):
        assert wanted in text, f"{wanted} is not among\n{text}"
    assert len(caught.value.problems) == 15


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("name: s", "name: s\njob_id: all_the_same", "all trials have this id: put {trial:04d} into it"),
        ("name: s", 'name: s\njob_id: "{lang}/{trial}"', "expected 1 to 200 letters, digits"),
        ("name: s", 'name: s\njob_id: "{langue}_{trial}"', "did you mean 'lang'"),
        ("name: s", "name: s\nsampler: cmaes", f"unknown sampler (known: {', '.join(SAMPLERS)})"),
        ("name: s", "name: s\nsampler: [tpe]", "expected one of tpe, random, qmc"),
        ('"/out/{job_id}"', '"/out/{job}"', "did you mean 'job_id'"),
        ('"/out/{job_id}"', "3", "expected text such as"),
        ("space:", "spaces:", "space: is missing"),
        ("space: {", "space: {}\nspaces: {", "space = {}: expected parameters such as lr"),
        (
            "space: {",
            "space: {trial: {choice: [1, 2]}, lang: {choice: [1, 2]}, ",
            "space.trial: is set by the expansion",
        ),
        ("objective:", "goal:", "objective: is missing"),
        ("space: {", "space: {w: {integer: [1, 9], log: true, step: 2}, ", "expected log or step, not both"),
        ("space: {", "space: {w: {integer: [0, 9], log: true}, ", "0 has no logarithm"),
        ("space: {", "space: {w: {integer: [0, 9], step: 10}, ", "step = 10: expected a whole number from 1 to 9"),
        ("space: {", "space: {w: {uniform: [1, 9], log: true}, ", "log_uniform has logarithms"),
        ("space: {", "space: {w: {log_uniform: [1, 9], step: 2}, ", "step is not one of its options"),
        ("space: {", "space: {w: {choice: [0, {log_uniform: [0, 1]}]}, ", "0 has no logarithm"),
        (
            "space: {",
            "space: {w: {integer: [1, 9], when: {v: 1}}, ",
            "when: v is no parameter above this one",
        ),
        ("space: {", "space: {v: {choice: [{a: [{1: b}]}, 2]}, ", "1 is no text: put the key in quotes"),
        (
            "space: {",
            "space: {v: {choice: [1]}, w: {integer: [1, 9], when: {v: {abvoe: 1}}}, ",
            "unknown condition 'abvoe'",
        ),
        ("trials: 50", "", "trials: is missing"),
    ],
)
def test_each_fault_says_what_is_expected(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in GOOD
    with pytest.raises(ManifestError, match=r"tune\.yaml") as caught:
        read(tmp_path / "tune.yaml", GOOD.replace(old, new))
    assert fault in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read: No such file"):
        read_settings(tmp_path / "none.yaml")
    with pytest.raises(ManifestError, match="expected"):
        read(tmp_path / "tune.yaml", "[1, 2]")
