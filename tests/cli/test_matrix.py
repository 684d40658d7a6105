"""`dispatcher matrix make|check|show`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dispatcher.base.users import name_of
from dispatcher.cli.matrix import matrix
from dispatcher.config import load_config
from dispatcher.errors import ManifestError, UsageError
from dispatcher.matrix import Entry, load_manifest, write_manifest
from dispatcher.matrix.sweep import expand
from dispatcher.templates.check import check_entries
from dispatcher.workspace import Layout

SPECIFICATION = """
defaults: {method: fft}
job_id: "{lang}_s{seed}"
sweeps:
  - grid: {lang: [es, de], seed: [1, 2]}
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "a'; echo foo")
    layout.templates_dir.mkdir(parents=True)
    layout.config_file.touch()
    layout.training_template("fft").write_text("PARAMS = {'lang': ..., 'seed': 0}\n")
    return layout


def call(layout: Layout, *arguments: str) -> Result:
    return CliRunner().invoke(matrix, arguments, obj=str(layout.root))


def test_make_writes_the_manifest_of_the_workspace(layout: Layout) -> None:
    spec = layout.root / "sweep.yaml"
    spec.write_text(SPECIFICATION)
    result = call(layout, "make", str(spec))
    assert result.exit_code == 0 and "4 jobs (fft 4)" in result.output
    assert [entry["job_id"] for entry in json.loads(layout.default_matrix.read_text())] == [
        "es_s1",
        "es_s2",
        "de_s1",
        "de_s2",
    ]
    elsewhere = layout.root / "other.json"
    assert call(layout, "make", str(spec), "-o", str(elsewhere)).exit_code == 0
    assert elsewhere.read_text() == layout.default_matrix.read_text()


def test_make_tells_which_values_lose_their_spelling(layout: Layout) -> None:
    sweep = layout.root / "sweep.yaml"
    sweep.write_text("""
defaults: {method: fft, gpus: 0, priority: 0x10, lang: es}
job_id: "{version}_{steps}_{draw}"
sweeps:
  - grid: {version: [2.9, 2.10, "3.10"], steps: [1e3, 2e3], lr: [1e-3]}
    random: {seed: 1, count: 1, draw: {flag: {choice: [True]}, size: {uniform: [0.10, 1e3]}}}
    exclude: [{version: 2.90}]
""")
    result = call(layout, "make", str(sweep))
    assert [line for line in result.output.splitlines() if line.startswith("warning: ")] == [
        'warning: version: 2.10 in line 5 is read as 2.1: write "2.10" to keep its spelling, or 2.1',
        'warning: steps: 1e3 in line 5 is read as 1000.0 (and 1 more): write "1e3" to keep its spelling, or 1000.0',
        'warning: flag: True in line 6 is read as true: write "True" to keep its spelling, or true',
    ]


STATUS = '{"a": {"state": "done", "rev": 3}}'


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("sweep.yaml", "is the sweep file itself"),
        ("link.yaml", "is the sweep file itself"),
        ("hard.yaml", "is the sweep file itself"),
        ("run_state/matrix_status.json", "is the status file of this workspace"),
        ("status_link.json", "is the status file of this workspace"),
        ("run_state/new.json", "is in run_state/"),
        ("state_link/new.json", "is in run_state/"),
        ("matrix", "is a directory"),
        ("notes.txt", "is no manifest (not JSON: "),
        ("results.json", "is no manifest (a is no entry with a method)"),
        ("list.json", "is no manifest (member 2 is no entry with a method)"),
    ],
)
def test_make_replaces_nothing_but_manifests(layout: Layout, name: str, word: str) -> None:
    layout.run_state.mkdir()
    layout.matrix_dir.mkdir()
    root = layout.root
    kept = {
        "sweep.yaml": SPECIFICATION,
        "run_state/matrix_status.json": STATUS,
        "notes.txt": "lr was too high\n",
        "results.json": '{"a": {"state": "done", "method": "fft", "rev": 3}}',
        "list.json": '[{"job_id": "a", "method": "fft"}, 3]',
    }
    for file, text in kept.items():
        (root / file).write_text(text)
    (root / "link.yaml").symlink_to("sweep.yaml")
    (root / "hard.yaml").hardlink_to(root / "sweep.yaml")
    (root / "status_link.json").symlink_to("run_state/matrix_status.json")
    (root / "state_link").symlink_to("run_state")
    result = call(layout, "make", str(root / "sweep.yaml"), "-o", str(root / name))
    assert isinstance(result.exception, UsageError) and word in str(result.exception)
    assert "another file with -o FILE" in str(result.exception)
    assert {file: (root / file).read_text() for file in kept} == kept
    assert not (layout.run_state / "new.json").exists()


@pytest.mark.parametrize(
    "old",
    [
        "",
        "[]",
        '[{"job_id": "a", "method": "fft"}]',
        '[{"job_id": "a", "method": "fft", "state": "small", "rev": 3}]',
        '{"a": {"method": "fft", "gpus": -1}}',
        '{"a": {"method": "fft", "rev": 3}}',
    ],
)
def test_make_replaces_an_older_manifest(layout: Layout, old: str) -> None:
    spec, target = layout.root / "sweep.yaml", layout.root / "old.json"
    spec.write_text(SPECIFICATION)
    target.write_text(old)
    assert call(layout, "make", str(spec), "-o", str(target)).exit_code == 0
    assert len(json.loads(target.read_text())) == 4


def test_make_knows_jobs_that_the_status_file_has(layout: Layout) -> None:
    spec = layout.root / "sweep.yaml"
    spec.write_text(SPECIFICATION + "    needs: [pretrained]\n")
    assert isinstance(call(layout, "make", str(spec)).exception, ManifestError)
    assert not layout.default_matrix.exists()
    layout.run_state.mkdir()
    layout.status_file.write_text('{"pretrained": {"state": "done"}}')
    assert call(layout, "make", str(spec)).exit_code == 0


def test_check_passes_what_can_run(layout: Layout) -> None:
    write_manifest(layout.default_matrix, [{"job_id": "a", "method": "fft", "lang": "es"}])
    result = call(layout, "check")
    assert (result.exit_code, result.stderr) == (0, "") and "1 job (fft 1)" in result.stdout


def test_check_lists_all_faults_and_exits_1(layout: Layout) -> None:
    path = layout.root / "m.json"
    path.write_text('[{"job_id": "a/b", "method": "fft"}, {"job_id": "b"}]')
    result = call(layout, "check", str(path))
    assert result.exit_code == 1 and "2 problems" in result.stderr
    assert 'job_id = "a/b"' in result.stderr and "method is missing" in result.stderr


def test_check_tries_templates_and_commands(layout: Layout) -> None:
    write_manifest(
        layout.default_matrix,
        [
            {"job_id": "lacks", "method": "fft"},
            {"job_id": "typo", "method": "fft", "lang": "es", "sede": 3},
            {"job_id": "command", "method": "fft", "command": "run {lagn}", "lang": "es"},
            {"job_id": "reads", "method": "fft", "command": "run {other}", "other": 1},
            {"job_id": "untold", "method": "lora"},
        ],
    )
    result = call(layout, "check")
    assert result.exit_code == 1 and "4 problems" in result.stderr
    assert "lacks: has no lang, which " in result.stderr
    assert "command: the command has {lagn}" in result.stderr and "(did you mean 'lang'?)" in result.stderr
    assert "untold: " in result.stderr and "train_lora.py: there is no such template" in result.stderr
    assert "typo: nothing reads sede (did you mean seed?)" in result.stderr


def test_show_selects_and_tells_what_differs(layout: Layout) -> None:
    entries = [
        {"job_id": f"{lang}_{seed}", "method": "fft", "lang": lang, "seed": seed, "same": "x"}
        for lang in ("es", "et", "de")
        for seed in (1, 2)
    ]
    write_manifest(layout.default_matrix, entries)
    table = call(layout, "show").output.splitlines()
    assert table[0].split() == ["job_id", "method", "lang", "seed"] and table[-1] == "6 jobs (fft 6)"
    shown = call(layout, "show", "--where", "lang=e*", "--where", "seed!=1", "--json")
    assert json.loads(shown.output) == [{**entries[place], "user": name_of(os.getuid())} for place in (1, 3)]
    assert call(layout, "show", "--where", "lang=fr").output == "0 jobs of 6\n"
    assert call(layout, "show", "--where", "lang=fr", "--json").output == "[]\n"
    assert isinstance(call(layout, "show", "--where", "lang").exception, UsageError)


def test_show_keeps_a_value_on_its_line(layout: Layout) -> None:
    write_manifest(layout.default_matrix, [{"job_id": name, "method": "m", "x": f"{name}\n\x1b[31m"} for name in "ab"])
    output = call(layout, "show").output
    assert "\x1b" not in output and '"a\\n\\u001b[31m"' in output and len(output.splitlines()) == 5


MISSPELT = """
defaults: {method: fft, lang: es, time_limt: 8h}
job_id: "s{seed}"
sweeps: [{grid: {seed: [1, 2]}}]
"""


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, "2 jobs of fft (such as s1): nothing reads time_limt (did you mean time_limit?)"),
        ({"time_limt: 8h": "lnag: es", "lang: es, ": ""}, "has no lang"),
        (
            {"time_limt: 8h": "sede: 3", "{grid: {seed: [1, 2]}}": "{job_id: a}"},
            "a: nothing reads sede (did you mean seed?)",
        ),
        (
            {"time_limt: 8h": "command: cd src"},
            "cd exists only in a shell, and no shell reads it: use `setup`",
        ),
        ({"method: fft": "method: lora"}, "templates/train_lora.py: there is no such template"),
    ],
)
def test_make_and_check_refuse_alike(layout: Layout, change: dict[str, str], fault: str) -> None:
    text = MISSPELT
    for old, new in change.items():
        text = text.replace(old, new)
    spec = layout.root / "sweep.yaml"
    spec.write_text(text)
    made = call(layout, "make", str(spec))
    assert isinstance(made.exception, ManifestError) and fault in str(made.exception)
    assert "was not written" in str(made.exception) and not layout.default_matrix.exists()
    write_manifest(layout.default_matrix, expand(spec))
    checked = call(layout, "check")
    assert checked.exit_code == 1 and fault in checked.stderr


def test_labels_are_no_fault(layout: Layout) -> None:
    labels = {"config_id": "B", "run_kind": "main", "gpu_hours": 3, "seed2": 1}
    entry = {"job_id": "a", "method": "fft", "lang": "es", **labels}
    command = {"job_id": "b", "method": "x", "command": "run {gpu}", "gpu": 3, **labels}
    write_manifest(layout.default_matrix, [entry, command])
    result = call(layout, "check")
    assert result.exit_code == 0
    note = "templates/train_fft.py does not read config_id, run_kind, gpu_hours, seed2 (fine for tables and filters)"
    assert result.stderr == f"note: {note}\n"


def test_parameters_that_the_command_of_a_method_does_not_pass_on_are_noted(layout: Layout) -> None:
    layout.config_file.write_text("methods: {own: {command: 'python train.py --lr {lr}'}}\n")
    write_manifest(layout.default_matrix, [{"job_id": "a", "method": "own", "lr": 1, "epochs": 5, "seed": 1}])
    result = call(layout, "check")
    assert result.exit_code == 0
    assert result.stderr == "note: the command of own does not read epochs, seed (fine for tables and filters)\n"


@pytest.mark.parametrize(
    ("command", "is_noted"),
    [("t.py --out out", True), ("t.py --out {attempt_dir}", False), ("sh -c 't $DISPATCHER_ATTEMPT_DIR'", False)],
)
def test_a_command_that_does_not_say_where_results_are_looked_for_is_noted(
    layout: Layout, command: str, is_noted: bool
) -> None:
    layout.config_file.write_text(f'methods: {{own: {{command: "{command}", result: a.json, metrics: b.csv}}}}\n')
    write_manifest(layout.default_matrix, [{"job_id": "a", "method": "own"}])
    result = call(layout, "check")
    assert result.exit_code == 0
    told = "the command of own does not have {attempt_dir}, where its result and metrics must be"
    assert (told in result.stderr) is is_noted


def test_a_misspelt_key_of_a_job_is_a_fault_too(layout: Layout) -> None:
    params = {"model.vocab_size": 256, "restor": "default/default/base/best", "label": 1}
    entry = Entry(job_id="a", method="x", job="gpt/train/pretrain", params=params)
    findings = check_entries(load_config(layout), [entry])
    assert findings.misspelt == ("a: nothing reads restor (did you mean restore?)",)
    assert findings.faults == findings.notes == ()


def test_checking_costs_no_more_than_a_few_times_reading(layout: Layout) -> None:
    entries = [
        {"job_id": f"j{n}", "method": "fft", "lang": "es", "time_limt": "8h", "label": n, "config_id": "B"}
        for n in range(100_000)
    ]
    write_manifest(layout.default_matrix, entries)
    begun = time.process_time()
    loaded = load_manifest(layout.default_matrix)
    read_s = time.process_time() - begun
    begun = time.process_time()
    findings = check_entries(load_config(layout), loaded.entries.values())
    assert time.process_time() - begun < 10 * read_s
    assert len(findings.misspelt) == 1 and "100000 jobs of fft (such as j0)" in findings.misspelt[0]
