"""What `dispatcher usage` prints."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from pod_times import NOON, Journal

from dispatcher.cli.main import main
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import now_text
from dispatcher.workspace import Layout

WINDOW = ["--utc", "--since", now_text(NOON), "--until", now_text(NOON + 24 * 3600)]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """Two pods; what their jobs did in a day."""
    journal = Journal()
    journal.pod(0, "gpu-a", gpus=[0, 1], user="ada")
    journal.pod(0, "gpu-b", gpus=[0], cpu_slots=1, user="bob")
    ends: list[tuple[str, Event, dict[str, Any]]] = [
        ("useful", Event.DONE, {"state": "done"}),
        ("failed", Event.FAILED, {"state": "failed", "reason": "exit 1"}),
        ("preempted", Event.FAILED, {"state": "failed", "reason": "preempted 3 times"}),
        ("lost", Event.FAILED, {"state": "failed", "reason": "lost 3 times"}),
        ("superseded", Event.FAILED, {"state": "failed", "reason": "lost 3 times", "error": "superseded"}),
        ("cancelled", Event.STOPPED, {"state": "abandoned"}),
    ]
    for number, (job, event, fields) in enumerate(ends):
        lang = "german" if number % 2 else "greek"
        journal.queue(number, job, method="fft" if number < 4 else "lora", lang=lang, gpus=1)
        journal.claim(number, "gpu-a", job, gpu=0)
        journal.add(number + 1, "gpu-a", event, job, **fields)
    journal.queue(0, "on-cpu", method="eval", lang="greek", gpus=0)
    journal.claim(0, "gpu-b", "on-cpu")
    journal.done(6, "gpu-b", "on-cpu")
    journal.end_pod(24, "gpu-a", 0)
    journal.end_pod(12, "gpu-b", 0)
    root = tmp_path / "lab"
    journal.write(Layout(root))
    (root / "matrix").mkdir()
    (root / "matrix" / "matrix.json").write_text(json.dumps([one.document() for one in journal.entries.values()]))
    return root


def run(lab: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["usage", "--root", str(lab), *WINDOW, *words]) == 0
    return capsys.readouterr().out


def test_where_the_day_went(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(lab, capsys)
        == """\
2026-09-21 12:00:00Z to 2026-09-22 12:00:00Z (1d00h)

time             GPU-hours  % of GPUs  slot-hours  % of slots
---------------  ---------  ---------  ----------  ----------
useful                1.00        1.7        7.00         9.7
failed                1.00        1.7        1.00         1.4
preempted             1.00        1.7        1.00         1.4
lost                  1.00        1.7        1.00         1.4
superseded            1.00        1.7        1.00         1.4
cancelled             1.00        1.7        1.00         1.4
idle: otherwise      54.00       90.0       60.00        83.3
total                60.00      100.0       72.00       100.0

in % of the row's GPU-hours, without GPUs of its slot-hours:
method    GPU-hours  slot-hours  useful  failed  preempted  lost  superseded  cancelled   idle
--------  ---------  ----------  ------  ------  ---------  ----  ----------  ---------  -----
fft            4.00        4.00    25.0    25.0       25.0  25.0
lora           2.00        2.00                                         50.0       50.0
eval                       6.00   100.0
(no job)      54.00       60.00                                                          100.0
total         60.00       72.00     1.7     1.7        1.7   1.7         1.7        1.7   90.0

72.00 slot-hours = 72.00 wall time x slots of 2 pods
"""
    )


def test_a_narrow_terminal_has_small_kinds_together(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.cli.usage.terminal_width", lambda: 80)
    lines = run(lab, capsys, "--by", "method,lang").splitlines()[3:]
    assert lines[0].split() == ["method", "lang", "GPU-hours", "slot-hours", "useful", "failed", "idle", "other"]
    assert all(len(line) <= 80 for line in lines)


def test_by_keys_of_pods_each_has_its_idle_slots(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(run(lab, capsys, "--by", "user,pod", "--json"))["rows"]
    found = {(row["values"]["user"], row["values"]["pod"]): row["hours"] for row in rows}
    assert found["ada", "gpu-a"]["idle"]["gpus"] == pytest.approx(48 - 6)
    assert found["bob", "gpu-b"]["total"] == pytest.approx({"slots": 24, "gpus": 12})


def test_days_come_in_their_order_and_add_up(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(lab, capsys, "--by", "day").splitlines()
    assert [line.split()[:3] for line in lines[5:8]] == [
        ["2026-09-21", "36.00", "48.00"],
        ["2026-09-22", "24.00", "24.00"],
        ["total", "60.00", "72.00"],
    ]
    rows = list(csv.DictReader(io.StringIO(run(lab, capsys, "--by", "method,day", "--format", "csv"))))
    assert sum(float(row["slot_hours"]) for row in rows) == pytest.approx(72)
    assert {row["day"] for row in rows if not row["method"]} == {"2026-09-21", "2026-09-22"}
    lines = run(lab, capsys, "--by", "method,day").splitlines()
    assert [line.split()[:2] for line in lines[5:8]] == [
        ["fft", "2026-09-21"],
        ["lora", "2026-09-21"],
        ["eval", "2026-09-21"],
    ]
    assert [line.split()[:3] for line in lines[8:10]] == [["(no", "job)", "2026-09-21"], ["(no", "job)", "2026-09-22"]]


def test_an_attempt_is_of_whose_job_it_was_when_it_was_claimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal()
    journal.pod(0, "gpu-a", gpus=[0], user="root")
    journal.queue(0, "job", method="fft", gpus=1)
    for hours, user in ((0, "ada"), (4, "bob"), (7, None)):
        journal.claim(hours, "gpu-a", "job", gpu=0, number=hours + 1, user=user)
        journal.done(hours + 3, "gpu-a", "job")
    journal.end_pod(10, "gpu-a", 0)
    root = tmp_path / "lab"
    journal.write(Layout(root))
    (root / "matrix").mkdir()
    (root / "matrix" / "matrix.json").write_text('[{"job_id": "job", "method": "fft", "user": "eve"}]')
    rows = json.loads(run(root, capsys, "--by", "user", "--json"))["rows"]
    useful = {row["values"]["user"]: row["hours"]["useful"]["gpus"] for row in rows}
    assert useful == pytest.approx({"ada": 3, "bob": 3, "root": 3}), "one of an earlier release: of the pod's user"
    for words, hours in ((["--user", "ada"], 3), (["--user", "ada,bob"], 6), (["--where", "user!=ada"], 6)):
        total = json.loads(run(root, capsys, *words, "--json"))["total"]
        assert (set(total), total["useful"]["gpus"]) == ({"total", "useful"}, pytest.approx(hours)), words
    assert main(["usage", "--root", str(root), *WINDOW, "--user", "adaa"]) == 2
    assert "did you mean 'ada'?" in capsys.readouterr().err


def test_csv_has_hours_of_each_kind(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(run(lab, capsys, "--by", "lang", "--format", "csv"))))
    assert sum(float(row["slot_hours"]) for row in rows) == pytest.approx(72)
    failed = next(row for row in rows if row["time"] == "failed")
    assert (failed["lang"], float(failed["gpu_hours"])) == ("german", pytest.approx(1))


@pytest.mark.parametrize("style", ["github", "latex"])
def test_documents_have_the_table_alone(lab: Path, capsys: pytest.CaptureFixture[str], style: str) -> None:
    lines = run(lab, capsys, "--format", style).splitlines()
    assert all(line.startswith("|") if style == "github" else line.startswith(("\\", " ")) for line in lines)


def test_of_some_jobs_nothing_is_idle(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(lab, capsys, "--where", "lang=greek", "--where", "method=fft", "--json"))
    assert set(found["total"]) == {"total", "useful", "preempted"}
    assert found["check"] is None


def test_a_window_without_anything(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no pod and no attempt ran" in run(lab, capsys, "--since", "2020-01-01", "--until", "2020-01-02")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--by", ","], "--by ',' names no key: expected keys with commas between them"),
        (["--by", "metod"], "no job has a value for 'metod' (did you mean 'method'?)"),
        (["--by", "usr"], "no job has a value for 'usr' (did you mean 'user'?)"),
        (["--by", "x"], "no job has a value for 'x' (known: pod, host, user, outlet, day, method, "),
        (["--since", "yesterday"], "--since yesterday: expected how long ago"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], "--until 2026-01-01 is not after --since 2026-01-02"),
    ],
)
def test_what_cannot_be_asked(lab: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["usage", "--root", str(lab), *words]) == 2
    assert message in capsys.readouterr().err
