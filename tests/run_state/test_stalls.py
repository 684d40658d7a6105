"""Which running jobs count as stalled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import Config, Method, load_config
from dispatcher.matrix.entry import Entry
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.progress import Progress, parse_progress
from dispatcher.run_state.stalls import Stalls
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout

NOW_S = 1_800_000_000.0


class Lab:
    """A workspace whose attempts have reported at given times."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self.records: dict[str, Record] = {}
        self.entries: dict[str, Entry] = {}
        self.progress: dict[str, Progress] = {}

    def job(
        self, job: str, state: State, silent_s: float, longest_gap_s: float | None = None, *,
        method: str = "fft", reports: bool = True,
    ) -> None:  # fmt: skip
        """A job in this state, whose attempt began or last reported so long ago."""
        self.records[job] = Record(state=state, attempt=1, rev=len(self.records) + 1)
        self.entries[job] = Entry(job_id=job, method=method)
        paths = self.layout.attempt(job, 1)
        paths.directory.mkdir(parents=True)
        if reports:
            document: dict[str, Any] = {"step": 1, "of": 2}
            if longest_gap_s is not None:
                document["longest_gap_s"] = longest_gap_s
            paths.progress.write_text(json.dumps(document))
            progress = parse_progress(paths.progress.read_bytes())
            if state is State.RUNNING and progress is not None:
                self.progress[job] = progress
        paths.taken.write_text("host 1\n")
        for path in (paths.progress, paths.taken) if reports else (paths.taken,):
            os.utime(path, (NOW_S - silent_s, NOW_S - silent_s))

    def stalled(self, stall_after_s: float | None = None, of_method_s: float | None = None) -> dict[str, float]:
        method = Method(name="fft", template=self.layout.training_template("fft"), stall_after_s=of_method_s)
        config = Config(
            layout=self.layout, matrix=self.layout.default_matrix, methods={"fft": method}, stall_after_s=stall_after_s
        )
        snapshot = Snapshot(records=self.records, entries=self.entries, progress=self.progress, now_s=NOW_S)
        return Stalls(self.layout, config).find(snapshot)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_three_times_the_longest_gap_of_the_method(lab: Lab) -> None:
    lab.job("done", State.DONE, 5000, longest_gap_s=200)
    lab.job("slow", State.RUNNING, 590, longest_gap_s=10)
    lab.job("still", State.RUNNING, 610, longest_gap_s=10)
    assert lab.stalled() == {"still": pytest.approx(610)}


def test_gaps_of_other_methods_do_not_count(lab: Lab) -> None:
    lab.job("other", State.DONE, 5000, longest_gap_s=5, method="lora")
    lab.job("a", State.RUNNING, 4000)
    assert lab.stalled() == {}


def test_a_few_minutes_are_never_a_stall(lab: Lab) -> None:
    lab.job("a", State.RUNNING, 290, longest_gap_s=1)
    assert lab.stalled() == {}


def test_nothing_is_claimed_where_nothing_is_known(lab: Lab) -> None:
    lab.job("by hand", State.RUNNING, 90_000)
    lab.job("mute", State.RUNNING, 90_000, reports=False)
    assert lab.stalled() == {}


def test_a_job_that_hangs_before_its_first_report(lab: Lab) -> None:
    lab.job("done", State.DONE, 5000, longest_gap_s=120)
    lab.job("mute", State.RUNNING, 4000, reports=False)
    assert lab.stalled() == {"mute": pytest.approx(4000)}


def test_the_settings_come_before_what_is_usual(lab: Lab) -> None:
    lab.job("done", State.DONE, 5000, longest_gap_s=200)
    lab.job("a", State.RUNNING, 100, longest_gap_s=10)
    lab.job("b", State.RUNNING, 4000, longest_gap_s=10)
    assert set(lab.stalled(stall_after_s=60)) == {"a", "b"}
    assert set(lab.stalled(stall_after_s=60, of_method_s=300)) == {"b"}
    assert lab.stalled(stall_after_s=7200) == {}


def test_the_setting_for_all_methods_says_nothing_of_one_that_never_reports(lab: Lab) -> None:
    lab.job("mute", State.RUNNING, 4000, reports=False)
    assert lab.stalled(stall_after_s=60) == {}
    assert set(lab.stalled(of_method_s=60)) == {"mute"}


def test_only_running_jobs_stall(lab: Lab) -> None:
    lab.job("done", State.DONE, 5000, longest_gap_s=1)
    lab.job("submitted", State.SUBMITTED, 5000, longest_gap_s=1)
    assert lab.stalled() == {}


def test_the_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / "dispatcher.yaml").write_text("stall_after: 30m\nmethods:\n  fft: {stall_after: 2h}\n")
    config = load_config(Layout(tmp_path))
    assert (config.stall_after_s, config.method("fft").stall_after_s) == (1800, 7200)


def test_a_filtered_snapshot_has_the_same_stalls(lab: Lab) -> None:
    lab.job("done", State.DONE, 5000, longest_gap_s=3000)
    # Alone, `a` would be silent for longer than is usual.
    lab.job("a", State.RUNNING, 4000, longest_gap_s=10)
    lab.job("b", State.RUNNING, 10_000, longest_gap_s=10)
    find = Stalls(lab.layout, Config(layout=lab.layout, matrix=lab.layout.default_matrix)).find
    whole = Snapshot(records=lab.records, entries=lab.entries, progress=lab.progress, now_s=NOW_S, find_stalled=find)
    assert set(whole.stalled) == {"b"}
    assert whole.only({"a": lab.records["a"]}).stalled == {}
    assert whole.only({"b": lab.records["b"]}).stalled == whole.stalled


def test_what_a_script_logs_where_its_method_says_is_a_sign_of_life(lab: Lab) -> None:
    lab.job("logs", State.RUNNING, 4000, reports=False)
    directory = lab.layout.attempt("logs", 1).directory
    (directory / "script-outputs.json").write_text('{"metrics": {"path": "log.csv"}}')
    assert set(lab.stalled(of_method_s=60)) == {"logs"}
    (directory / "log.csv").touch()
    os.utime(directory / "log.csv", (NOW_S - 30, NOW_S - 30))
    assert lab.stalled(of_method_s=60) == {}
