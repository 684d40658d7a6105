"""Values that a shell would choke on arrive as they are, in every field that reaches a command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fleet import Fleet, fleet_at, shell
from hypothesis import given, settings
from hypothesis import strategies as st

HOSTILE = {
    "spaces": "  two  words ",
    "quotes": """it's "quoted" `twice` \\' \\" \\\\""",
    "newline": "first\nsecond\r\n\tthird\n",
    "substitution": "$(touch made_by_substitution) `touch made_by_backquotes` ${HOME} $HOME $$ $'\\x41'",
    "separators": "; touch made_by_semicolon & touch made_by_ampersand | tee made_by_pipe > made_by_redirection #",
    "unicode": "größer als ∞ 日本語 🦆 \u202e\u0301",
    "dash": "-rf",
    "dashes": "--pod",
    "globs": "* ? [a-z] {a,b} ~ !! !$",
    "empty": "",
    "percent": "%s %d %n %%",
    "controls": "\x01\x1b[31m\x7f",
    "braces": "{job_id} {{key}} {script}",
    "assignment": "A=b",
    "keyword": "done",
    "tab": "\t",
}
SHOW = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(sys.argv[1], 'w'))"


def shown(fleet: Fleet, job: str) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment that the job saw."""
    arguments, environment = json.loads((fleet.root / f"{job}.json").read_text())
    return arguments, environment


def made(fleet: Fleet) -> list[Path]:
    return list(fleet.root.rglob("made_by_*"))


def test_words_of_a_command(fleet: Fleet) -> None:
    values = [value for name, value in HOSTILE.items() if name != "braces"]
    words = [value.replace("{HOME}", "{{HOME}}") for value in values]
    fleet.write_manifest([{"job_id": "a", "command": [sys.executable, "-c", SHOW, "a.json", *words]}])
    assert fleet.run_all().end() == 0, fleet.records()
    assert shown(fleet, "a")[0][1:] == values
    assert made(fleet) == []


def test_parameters_and_environment(fleet: Fleet) -> None:
    """In a command that is text, and in one that is a list; in the entry's environment and in the method's."""
    template = " ".join(f"{{{name}}}" for name in HOSTILE)
    text = f"{{python}} -c {{program}} a.json {template}"
    listed = ["{python}", "-c", "{program}", "b.json", *(f"{{{name}}}" for name in HOSTILE)]
    env = {f"HOSTILE_{name}": value for name, value in HOSTILE.items()}
    common = {"program": SHOW, "env": env, **HOSTILE}
    fleet.write_manifest([{"job_id": "a", "command": text, **common}, {"job_id": "b", "command": listed, **common}])
    fleet.write_config(f"methods: {{m: {{env: {json.dumps({'OF_METHOD': HOSTILE['substitution']})}}}}}\n")
    assert fleet.run_all().end() == 0, fleet.records()
    for job in ("a", "b"):
        arguments, environment = shown(fleet, job)
        assert dict(zip(HOSTILE, arguments[1:], strict=True)) == HOSTILE
        assert {name: environment[name] for name in env} == env
        assert environment["OF_METHOD"] == HOSTILE["substitution"]
        assert environment["DISPATCHER_ROOT"] == str(fleet.root)
        assert environment["DISPATCHER_ATTEMPT_DIR"] == str(fleet.attempt(job).directory)
    assert made(fleet) == []
    assert json.loads(fleet.attempt("a").entry.read_text())["quotes"] == HOSTILE["quotes"]


def test_parameters_of_a_rendered_script(fleet: Fleet) -> None:
    names = ", ".join(f"{name!r}: ..." for name in HOSTILE)
    fleet.layout.templates_dir.mkdir()
    fleet.layout.training_template("m").write_text(
        f"import json\nPARAMS = {{{names}, 'job_id': ...}}\njson.dump(PARAMS, open(PARAMS['job_id'] + '.json', 'w'))\n",
    )
    fleet.write_manifest([{"job_id": "a", **HOSTILE}])
    assert fleet.run_all().end() == 0, fleet.records()
    assert json.loads((fleet.root / "a.json").read_text()) == {**HOSTILE, "job_id": "a"}
    assert made(fleet) == []


def test_an_entry_cannot_have_a_gpu_that_is_not_its_own(fleet: Fleet) -> None:
    """Its env narrows what its slot has."""
    script = "echo gpu [$CUDA_VISIBLE_DEVICES]"
    named = {"outside": "7", "second": "3", "either": "2,3", "hidden": "", "hidden_too": "-1"}
    fleet.write_manifest(
        [shell(job, script, env={"CUDA_VISIBLE_DEVICES": gpus}, gpus=1) for job, gpus in named.items()]
        + [shell("by_method", script, method="h", gpus=1), shell("anywhere", script, env={"CUDA_VISIBLE_DEVICES": "3"})]
    )
    fleet.write_config("methods: {h: {env: {CUDA_VISIBLE_DEVICES: ''}}}\n")
    fleet.run("matrix", "check")
    pod = fleet.run_all("--gpus", "2,3", "--slots", "1")
    assert fleet.states()["outside"] == "queued"
    assert "env names GPU 7 (CUDA_VISIBLE_DEVICES), this pod has 2,3" in pod.said + fleet.run("show", "outside")
    shown = {job: fleet.output(job) for job in fleet.states() if job != "outside"}
    assert shown.pop("either") in ("gpu [2]\n", "gpu [3]\n")
    assert shown.pop("second") == shown.pop("anywhere") == "gpu [3]\n"
    assert set(shown.values()) == {"gpu []\n"} and len(shown) == 3


def test_variables_of_gpus_that_cannot_be_honoured(fleet: Fleet) -> None:
    """They are found by a check, and concern their own job alone."""
    wrong = {
        "none": (
            {"CUDA_VISIBLE_DEVICES": "1"},
            0,
            "env names GPU 1 (CUDA_VISIBLE_DEVICES), and with gpus: 0 it sees none",
        ),
        "part": ({"CUDA_VISIBLE_DEVICES": "MIG-5b"}, 1, 'CUDA_VISIBLE_DEVICES is "MIG-5b": expected the indices'),
        "order": ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, 1, 'CUDA_DEVICE_ORDER is "FASTEST_FIRST": GPUs of jobs are'),
    }
    jobs = [shell(job, "true", env=env, gpus=gpus) for job, (env, gpus, _) in wrong.items()]
    fleet.write_manifest([shell("fine", "true"), *jobs])
    checked = fleet.try_("matrix", "check")
    fleet.run_all("--gpus", "0", "--slots", "1")
    assert fleet.states() == {"fine": "done", "none": "queued", "part": "queued", "order": "queued"}
    for job, (_, _, why) in wrong.items():
        assert checked.returncode == 1 and f"{job}: {why}" in checked.stderr
        assert why in fleet.run("show", job)


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=3)
@given(st.lists(texts, min_size=20, max_size=40))
def test_any_text(tmp_path_factory: pytest.TempPathFactory, values: list[str]) -> None:
    with fleet_at(tmp_path_factory.mktemp("any") / "w") as fleet:
        fleet.write_manifest(
            [
                {"job_id": f"j{n}", "value": value, "command": ["{python}", "-ISc", SHOW, f"j{n}.json", "{value}"]}
                for n, value in enumerate(values)
            ]
        )
        assert fleet.run_all("--slots", "2").end() == 0, fleet.records()
        assert [shown(fleet, f"j{n}")[0][1] for n in range(len(values))] == values
