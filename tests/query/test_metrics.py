"""Metrics of many jobs: which attempt counts for a step, and what becomes of lines that cannot be read."""

from __future__ import annotations

import json
import math
import os
import random

import pytest

from dispatcher.api import Workspace
from dispatcher.errors import StateError, UsageError
from dispatcher.query.metric_lines import LastLines
from dispatcher.query.metrics import JobMetrics, Metrics, read_metrics
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.runtime.metrics import MetricsLog


@pytest.fixture
def empty(tmp_path):
    return Workspace(tmp_path, by="test")


def write(workspace, entries):
    workspace.layout.matrix_dir.mkdir(exist_ok=True)
    workspace.layout.default_matrix.write_text(json.dumps(entries))


@pytest.fixture
def lab(empty):
    workspace = empty
    write(workspace, [{"job_id": job, "method": "m", "seed": seed} for seed, job in enumerate(("a", "b"))])
    return workspace


def begin(workspace, job, number):
    """The directory of the next attempt of a job."""
    with workspace.transaction() as tx:
        state = State.QUEUED
        if tx.record(job) is None:
            tx.change(job, Event.QUEUED, Change(state=state))
        else:
            tx.change(job, Event.REQUEUED, Change(state=state))
        tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=number))
        tx.change(job, Event.DONE, Change(state=State.DONE))
    directory = workspace.layout.attempt(job, number).directory
    directory.mkdir(parents=True)
    return directory


def log(directory, steps, *, resumed=0, factor=1.0):
    with MetricsLog(directory, resumed_step=resumed) as metrics:
        for step in steps:
            metrics.log(step, {"loss": factor * step})


def points(workspace, **given):
    return [
        (one.job_id, one.metric, list(zip(one.attempts, one.steps, one.values, strict=True)))
        for one in workspace.metrics(**given)
    ]


def test_the_last_attempt_counts_for_a_step_that_two_recorded(lab):
    log(begin(lab, "a", 1), [1, 2, 3, 4, 5])
    log(begin(lab, "a", 2), [3, 4], resumed=2, factor=10.0)
    # Step 5 of the first attempt was never continued: the second one resumed from step 2.
    assert points(lab) == [("a", "loss", [(2, 1, 1.0), (2, 2, 2.0), (2, 3, 30.0), (2, 4, 40.0)])]


def test_an_attempt_that_could_not_copy_continues_the_one_before(lab):
    log(begin(lab, "a", 1), [1, 2, 3])
    log(begin(lab, "a", 2), [3, 4], factor=10.0)
    begin(lab, "a", 3)
    assert points(lab) == [("a", "loss", [(1, 1, 1.0), (1, 2, 2.0), (2, 3, 30.0), (2, 4, 40.0)])]


def test_an_attempt_that_starts_anew_replaces_all(lab):
    log(begin(lab, "a", 1), [1, 2, 3])
    log(begin(lab, "a", 2), [1], factor=10.0)
    assert points(lab) == [("a", "loss", [(2, 1, 10.0)])]


def test_nan_and_infinity_are_kept_and_damaged_lines_counted(lab):
    path = begin(lab, "a", 1) / "metrics.jsonl"
    lines = [
        '{"step": 1, "wall_s": 0.5, "loss": "NaN", "note": "warm-up"}',
        '{"step": 2, "loss": "-Infinity", "accuracy": 1}',
        '{"step": 3, "loss": NaN}',
        '{"step": 4, "loss": null}',
        '{"step": 5, "lo',
        '{"loss": 1}',
        '{"step": 6, "loss": 0.5}',
        '{"step": 7, "loss": 0.4',
    ]
    path.write_text("\n".join(lines))
    accuracy, loss = sorted(lab.metrics(), key=lambda one: one.metric)
    assert list(loss.steps) == [1, 2, 3, 4, 6]
    assert [str(value) for value in loss.values] == ["nan", "-inf", "nan", "nan", "0.5"]
    assert (loss.wall_s[0], math.isnan(loss.wall_s[1])) == (0.5, True)
    assert list(accuracy.values) == [1.0]
    assert lab.metrics().damaged == {str(path): 2}


def test_metrics_of_one_step_may_stand_in_several_lines(lab):
    path = begin(lab, "a", 1) / "metrics.jsonl"
    lines = [{"step": 1, "loss": 1}, {"step": 1, "eval": 5}, {"step": 3, "loss": 3}, {"step": 2, "eval": 6}]
    lines += [{"step": 3, "loss": 4}, {"step": 3.5, "loss": 5}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert points(lab) == [
        ("a", "loss", [(1, 1, 1.0), (1, 3, 4.0), (1, 3.5, 5.0)]),
        ("a", "eval", [(1, 1, 5.0), (1, 2, 6.0)]),
    ]


def test_an_attempt_may_go_on_at_a_step_that_is_no_integer(lab):
    log(begin(lab, "a", 1), [1, 2, 3])
    (begin(lab, "a", 2) / "metrics.jsonl").write_text('{"step": 2.5, "loss": 7}\n')
    assert points(lab) == [("a", "loss", [(1, 1, 1.0), (1, 2, 2.0), (2, 2.5, 7.0)])]


def test_a_file_without_end_is_read_in_part_and_named(lab):
    endless, pipe = begin(lab, "a", 1), begin(lab, "b", 1) / "metrics.jsonl"
    log(endless, [1, 2])
    os.truncate(endless / "metrics.jsonl", 20 << 30)
    os.mkfifo(pipe)
    assert points(lab) == [("a", "loss", [(1, 1, 1.0), (1, 2, 2.0)])]
    why = "20 GiB long: only the first 256 MiB are read"
    assert lab.metrics().incomplete == {str(endless / "metrics.jsonl"): why, str(pipe): "cannot be read: no plain file"}
    with pytest.raises(UsageError, match=r"no job has a metric 'bpc'.*long: only the first 256 MiB"):
        lab.metrics(names="bpc")


def test_values_that_were_recorded_again_are_told(lab):
    path = begin(lab, "a", 1) / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in ((1, 1), (2, 17), (2, 7)))
    )
    other = begin(lab, "a", 2) / "metrics.jsonl"
    other.write_text('{"step": 2, "loss": 5}\n')
    metrics = lab.metrics()
    assert [list(one.values) for one in metrics] == [[1.0, 5.0]]
    assert metrics.overwritten == {str(path): 2}
    assert metrics.faults() == [f"2 values recorded again by a later line or attempt, and left out: {path}"]


def test_a_file_that_is_cut_and_grows_again_is_read_from_its_begin(lab):
    """Also where it begins with the same lines, has become longer than it was, or is another file."""
    path = begin(lab, "a", 1) / "metrics.jsonl"
    same = "".join(json.dumps({"step": step, "loss": 0.0}) + "\n" for step in range(100))
    read = JobMetrics(lab.layout.job_dir("a"))

    def values(text):
        path.write_text(text)
        read.read(1)
        return read.series["loss"].values.tolist()

    assert values(same + '{"step": 100, "loss": 1}\n') == [0.0] * 100 + [1.0]
    assert values(same + '{"step": 100, "loss": 2}\n{"step": 101, "loss": 3}\n') == [0.0] * 100 + [2.0, 3.0]
    assert values('{"step": 1, "loss": 4}\n') == [4.0]
    path.unlink()
    read.read(1)
    assert not read.series
    assert values('{"step": 1, "loss": 5}\n{"step": 2, "lo') == [5.0]
    with open(path, "a") as file:
        file.write('ss": 6}\n')
    read.read(1)
    assert read.series["loss"].values.tolist() == [5.0, 6.0]


def values_of(series):
    return {one.metric: list(zip(one.attempts, one.steps, one.values, strict=True)) for one in series}


def test_what_grows_in_parts_is_as_if_it_were_read_at_once(lab):
    """A reader that follows, whatever was written between two looks, has what one has that reads once."""
    directory = begin(lab, "a", 1)
    begin(lab, "a", 2)
    generator = random.Random(3)
    follower = JobMetrics(lab.layout.job_dir("a"))
    for turn in range(60):
        number = 1 if turn < 30 else 2
        line = {"step": generator.randrange(40), generator.choice(("loss", "eval")): turn}
        text = json.dumps(line) + "\n" if generator.random() < 0.9 else "x" * (3 << 19) + "\n"
        cut = generator.randrange(len(text))
        for part in (text[:cut], text[cut:]):
            with open(directory.parent / str(number) / "metrics.jsonl", "a") as file:
                file.write(part)
            follower.read(number)
            once = read_metrics(lab.layout, {"a": number})
            told = Metrics()
            follower.tell(told)
            assert values_of(follower.series.values()) == values_of(once)
            assert told.faults() == once.faults()


def test_a_look_opens_no_file_of_an_attempt_that_has_ended(lab):
    """Nor are its values combined again while the next attempt has logged nothing."""
    log(begin(lab, "a", 1), [1, 2, 3])
    log(begin(lab, "a", 2), [1, 2], factor=10.0)
    last = begin(lab, "a", 3)
    opened = []

    def open_file(path, job):
        opened.append(path)
        return open(path, "rb", buffering=0)

    follower = JobMetrics(lab.layout.job_dir("a"), open_file=open_file)
    follower.read(3)
    series, version = follower.series, follower.version
    opened.clear()
    follower.read(3)
    assert (opened, follower.version) == ([last / "metrics.jsonl"], version) and follower.series is series
    assert values_of(series.values()) == {"loss": [(2, 1, 10.0), (2, 2, 20.0)]}
    log(last, [3])
    follower.read(3)
    series = follower.series
    follower.read(3)
    assert follower.series is series


def test_a_file_of_one_attempt_that_is_not_opened_hides_no_other(lab):
    log(begin(lab, "a", 1), [1, 2])
    log(begin(lab, "a", 2), [2, 3], factor=10.0)

    def open_file(path, job):
        if path.parent.name == "1":
            raise StateError(f"{path} is no plain file: it is not shown")
        return open(path, "rb", buffering=0)

    follower = JobMetrics(lab.layout.job_dir("a"), open_file=open_file)
    told = Metrics()
    follower.read(2)
    follower.tell(told)
    assert values_of(follower.series.values()) == {"loss": [(2, 2, 20.0), (2, 3, 30.0)]}
    assert told.faults() == [f"{lab.layout.job_dir('a') / '1' / 'metrics.jsonl'}: is no plain file: it is not shown"]


def test_no_more_metrics_are_read_than_memory_has_room_for(lab):
    path = begin(lab, "a", 1) / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 1, "acc": 2, "bpc": 3}\n{"step": 2, "acc": 4, "loss": 5}\n')
    follower = JobMetrics(lab.layout.job_dir("a"), most_names=2)
    told = Metrics()
    follower.read(1)
    follower.tell(told)
    assert values_of(follower.series.values()) == {
        "loss": [(1, 1, 1.0), (1, 2, 5.0)],
        "acc": [(1, 1, 2.0), (1, 2, 4.0)],
    }
    assert told.incomplete == {str(path): "more than 2 metrics: the others are left out"}


@pytest.mark.parametrize("step", [-(2**63) - 1, 2**63, "1e400", "NaN", "true", '"1"', "null"])
def test_a_line_whose_step_is_no_number_that_can_be_kept_is_damaged(lab, step):
    path = begin(lab, "a", 1) / "metrics.jsonl"
    path.write_text(
        f'{{"step": {-(2**63)}, "loss": 1}}\n{{"step": {step}, "loss": 2}}\n{{"step": {2**63 - 1}, "loss": 3}}\n'
    )
    assert points(lab) == [("a", "loss", [(1, -(2**63), 1.0), (1, 2**63 - 1, 3.0)])]
    assert lab.metrics().damaged == {str(path): 1}


def test_flags_large_numbers_and_names_of_columns_are_metrics(lab):
    path = begin(lab, "a", 1) / "metrics.jsonl"
    names = ("flag", "large", "value", "损失", "loss, total", "loss[0]", "")
    lines = [{"step": 1, **dict(zip(names, (True, 10**400, 3, 4, 5, 6, 7), strict=True))}, {"step": 2}]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    found = {one.metric: one.values[0] for one in lab.metrics()}
    assert found == dict(zip(names, (1.0, math.inf, 3.0, 4.0, 5.0, 6.0, 7.0), strict=True))
    assert [one.metric for one in lab.metrics(names="loss[0]")] == ["loss[0]"]
    assert lab.metrics().to_pandas()["metric"].tolist() == list(names)


def test_long_frames(lab):
    log(begin(lab, "a", 1), [1, 2])
    log(begin(lab, "b", 1), [5])
    frame = lab.metrics().to_pandas()
    assert list(frame.columns) == ["job_id", "metric", "attempt", "step", "wall_s", "value"]
    assert frame[["job_id", "metric", "attempt", "step", "value"]].values.tolist() == [
        ["a", "loss", 1, 1, 1.0], ["a", "loss", 1, 2, 2.0], ["b", "loss", 1, 5, 5.0],
    ]  # fmt: skip
    assert str(frame.dtypes["job_id"]) == "category"
    other = lab.metrics().to_polars()
    assert other.rows() == [tuple(row) for row in frame.values.tolist()]
    assert frame.groupby("job_id", observed=True)["value"].max().to_dict() == {"a": 2.0, "b": 5.0}


def test_jobs_and_metrics_are_chosen_by_name_or_glob(lab):
    path = begin(lab, "a", 1) / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 1, "eval_loss": 2, "eval_bpc": 3}\n')
    log(begin(lab, "b", 1), [1])
    assert [name for _, name, _ in points(lab, jobs="a", names="eval_*")] == ["eval_loss", "eval_bpc"]
    assert [job for job, _, _ in points(lab, names=["loss"])] == ["a", "b"]
    assert [job for job, _, _ in points(lab, where={"seed": 1})] == ["b"]
    with pytest.raises(UsageError, match=r"no job has a metric 'evalloss' \(did you mean 'eval_loss'\?\)"):
        lab.metrics(names="evalloss")
    with pytest.raises(UsageError, match="unknown job 'c'"):
        lab.metrics("c")


def named(directory, **table):
    """The file of a script in this attempt, of the form that its method names."""
    (directory / "script-outputs.json").write_text(json.dumps({"metrics": table}))
    path = directory / table["path"]
    path.parent.mkdir(exist_ok=True)
    return path


def test_a_table_that_a_method_names_goes_on_from_attempt_to_attempt(lab):
    named(begin(lab, "a", 1), path="out/log.csv", step="epoch").write_text("epoch,loss,lr\n1,1,0.1\n2,2,\n3,x,0.1\n")
    named(begin(lab, "a", 2), path="out/log.csv", step="epoch").write_text("loss,epoch\n20,2\nnan,3\n40,4")
    (_, _, loss), (_, _, lr) = points(lab)
    assert loss[:2] == [(1, 1, 1.0), (2, 2, 20.0)]
    assert loss[2][:2] == (2, 3) and math.isnan(loss[2][2]), "the last line is not complete"
    assert lr == [(1, 1, 0.1)]


def test_lines_without_steps_are_counted_and_start_anew(lab):
    named(begin(lab, "a", 1), path="log.jsonl").write_text('{"loss": 1}\n{"loss": 2, "step": 9}\n')
    named(begin(lab, "a", 2), path="log.jsonl").write_text('{"loss": 3}\n[]\n')
    named(begin(lab, "b", 1), path="log.csv").write_text("loss\n5\n\nloss\n6\n7,8\n")
    read = lab.metrics()
    assert points(lab) == [("a", "loss", [(2, 1, 3.0)]), ("b", "loss", [(1, 1, 5.0), (1, 2, 6.0)])]
    assert list(read.damaged.values()) == [1, 1]


def test_what_a_method_names_and_is_not_there_is_named(lab):
    path = named(begin(lab, "a", 1), path="log.csv")
    (begin(lab, "b", 1) / "script-outputs.json").write_text("of the job")
    assert lab.metrics().incomplete == {str(path): "there is no such file"}
    with pytest.raises(
        UsageError, match=r"no job has a metric 'loss': none has any; .*log\.csv: there is no such file"
    ):
        lab.metrics(names="loss")


def test_the_last_line_of_a_long_table(tmp_path):
    path = named(tmp_path, path="log.csv")
    path.write_text("step,loss\n" + "".join(f"{step},{step / 8}\n" for step in range(50_000)) + "50000,0.")
    assert LastLines().of(tmp_path) == {"step": 49999, "loss": 49999 / 8}
    # How many lines come before is not counted.
    path.write_text("loss\n" + "0.125\n" * 50_000)
    assert LastLines().of(tmp_path) is None
    path.write_text("loss\n0.5\n0.25\n")
    lines = LastLines()
    assert lines.of(tmp_path) == {"step": 2, "loss": 0.25}
    assert lines.of(tmp_path) is lines.of(tmp_path), "a file that has not changed is not read again"
    os.remove(path)
    assert LastLines().of(tmp_path) is None
