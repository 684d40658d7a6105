"""Scripts as labs have them: arguments, an output directory, a summary as JSON or CSV, a log of metrics per step."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from fleet import Fleet, wait_until

from dispatcher.api import Workspace
from dispatcher.tuning.rungs import RungValues

# Nothing of it is for the dispatcher.
SCRIPT = """
import argparse, csv, json, os, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--output-dir", default="runs")
parser.add_argument("--fail", action="store_true")
parser.add_argument("--wait", default="")
parser.add_argument("--without", default="")
args = parser.parse_args()

os.makedirs(args.output_dir, exist_ok=True)
place = lambda name: open(os.path.join(args.output_dir, name), "w", buffering=1)
weight, loss = 0.0, None
with place("log.csv") as table, place("log.jsonl") as lines:
    log = csv.DictWriter(table, ["epoch", "loss", "val_loss"])
    log.writeheader()
    for epoch in range(1, args.epochs + 1):
        weight -= args.lr * 2 * (weight - 3)
        loss = round((weight - 3) ** 2, 6)
        log.writerow({"epoch": epoch, "loss": loss, "val_loss": loss + 1 if epoch % 2 else None})
        print(json.dumps({"epoch": epoch, "loss": loss}), file=lines)
if not args.without:
    json.dump({"loss": loss, "eval": {"acc": 0.5}}, place("summary.json"))
if args.without == "half":
    place("summary.json").write('{"loss": ')
while args.wait and not os.path.exists(args.wait):
    time.sleep(0.02)
sys.exit(args.fail)
"""
COMMAND = '"{python} train.py --lr {lr} --output-dir {attempt_dir}/out {more?}"'
CONFIG = f"""
methods:
  json: {{gpus: 0, command: {COMMAND}, result: out/summary.json, metrics: {{path: out/log.jsonl, step: epoch}}}}
  csv: {{gpus: 0, command: {COMMAND}, result: {{path: out/log.csv, values: [loss, val_loss]}}, metrics: out/log.csv}}
  part: {{gpus: 0, command: {COMMAND}, result: {{path: "out/{{file}}.json", values: [eval.acc]}}}}
"""
LOSSES = [5.76, 3.6864, 2.359296]


@pytest.fixture
def lab(fleet: Fleet) -> Fleet:
    (fleet.root / "train.py").write_text(SCRIPT)
    fleet.write_config(CONFIG)
    return fleet


def job(method: str, more: str = "", **rest: Any) -> dict[str, Any]:
    # One word of the command for each of these.
    return {"job_id": method, "method": method, "lr": 0.1, **({"more": more} if more else {}), **rest}


def rows(lab: Fleet) -> dict[str, dict[str, Any]]:
    return {row["job_id"]: row for row in Workspace(lab.root).results()}


def points(lab: Fleet, name: str, metric: str = "loss") -> tuple[list[int], list[float], list[int]]:
    (found,) = Workspace(lab.root).metrics([name], names=metric)
    return list(found.steps), list(found.values), list(found.attempts)


def test_results_and_metrics_of_a_script_without_an_edit(lab: Fleet) -> None:
    lab.write_manifest([job("json"), job("csv"), job("part", file="summary")])
    assert lab.run_all().end() == 0
    found = rows(lab)
    assert (found["json"]["loss"], found["json"]["eval"]) == (2.359296, {"acc": 0.5})
    assert (found["csv"]["loss"], found["csv"]["val_loss"], "epoch" in found["csv"]) == (2.359296, 3.359296, False)
    assert found["part"]["eval.acc"] == 0.5
    # The steps that the lines name, and lines that are counted.
    assert points(lab, "json") == points(lab, "csv") == ([1, 2, 3], LOSSES, [1, 1, 1])
    # An empty cell is no value.
    assert points(lab, "csv", "val_loss")[0] == [1, 3]
    rungs = RungValues(Workspace(lab.root).layout, "loss", [2, 3])
    assert [one.value for one in rungs.reached("json", 1)] == LOSSES[1:]
    assert [one.value for one in rungs.reached("csv", 1)] == LOSSES[1:]
    assert "without" not in lab.run("results") + lab.run("status")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            "--without=all",
            "there is no such file in {0}: the script writes it there if its command has {{attempt_dir}}",
        ),
        ("--without=half", "not a JSON object"),
    ],
)
def test_a_result_that_is_missing_or_broken_is_named(lab: Fleet, more: str, why: str) -> None:
    lab.write_manifest([job("json", more)])
    pod = lab.run_all()
    assert pod.end() == 0
    text = f"result: out/summary.json: {why.format(lab.attempt('json').directory)}"
    record = lab.record("json")
    assert (record.state, record.error) == ("done", text)
    assert f"done json (attempt 1): {text}" in pod.said
    for command in (("status",), ("show", "json"), ("results",), ("doctor",)):
        done = lab.try_(*command)
        assert text in done.stdout + done.stderr, command
    assert Workspace(lab.root).results().lacking == {"json": text}
    # What is known of it is forgotten with the attempt.
    lab.write_manifest([job("json")])
    lab.run("requeue", "json", "--yes")
    assert lab.run_all().end() == 0
    assert (lab.record("json").error, rows(lab)["json"]["attempt"]) == (None, 2)


def test_each_attempt_has_its_own(lab: Fleet) -> None:
    lab.write_manifest([job("csv", "--fail")])
    lab.run_all().end()
    assert lab.record("csv").state == "failed"
    assert not lab.attempt("csv").result.exists(), "what failed has no result"
    lab.write_manifest([job("csv", "--without=all", lr=0.3)])
    lab.run("requeue", "csv", "--yes")
    assert lab.run_all().end() == 0
    assert (rows(lab)["csv"]["attempt"], rows(lab)["csv"]["loss"]) == (2, 0.036864)
    assert points(lab, "csv")[2] == [2, 2, 2]


def test_what_a_running_script_has_logged(lab: Fleet) -> None:
    end = lab.root / "end"
    lab.write_manifest([job("json", f"--wait={end}")])
    pod = lab.start("pod", "--until-empty")
    page = Workspace(lab.root)

    def logged() -> bool:
        seen = page.snapshot().progress.get("json")
        return seen is not None and (seen.step, seen.of, seen.metrics) == (3, None, {"loss": LOSSES[-1]})

    wait_until(logged, "the last line of its log is its progress")
    assert "step 3" in lab.run("status")
    end.touch()
    assert pod.end() == 0


@pytest.mark.parametrize("method", ["json", "csv"])
def test_told_to_stop_what_a_script_has_left_does_not_prove_that_it_is_complete(lab: Fleet, method: str) -> None:
    script = SCRIPT.replace("import argparse", "import signal, argparse").replace(
        "while args.wait", 'signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print("ready")\nwhile args.wait'
    )
    (lab.root / "train.py").write_text(script)
    lab.write_manifest([job(method, "--wait=never")])
    pod = lab.start()
    lab.wait_running(method)
    lab.run("hold", method, "--yes")
    lab.wait_for(method, "held")
    assert not lab.attempt(method).result.exists()
    pod.send(signal.SIGINT)
    pod.end()


def faults(lab: Fleet, entries: Sequence[dict[str, Any]]) -> str:
    lab.write_manifest(list(entries))
    done = lab.try_("matrix", "check")
    assert done.returncode == 1
    return done.stderr


def test_placeholders_of_paths_are_checked(lab: Fleet) -> None:
    assert "`result` or `metrics` of method part has {file}, which the entry does not have" in faults(
        lab, [job("part")]
    )
    typed = job("json", command="python train.py --out {attempts_dir}")
    assert "{attempts_dir}, which the entry does not have (did you mean 'attempt_dir'?)" in faults(lab, [typed])
    text = '"out/../../../1/x.json" is not in the attempt\'s directory'
    assert text in faults(lab, [job("part", file="../../../1/x")])
    assert f"cannot be started: `result` or `metrics` of method part: {text}" in lab.run(
        "--pod", "x", "--slots", "1", "--dry-run"
    )


def test_a_running_pod_follows_a_corrected_path(lab: Fleet) -> None:
    lab.write_config(CONFIG.replace("out/summary.json", "summary.json"))
    lab.write_manifest([job("json")])
    pod = lab.start()
    lab.wait_for("json", "done")
    assert lab.record("json").error is not None
    lab.write_config(CONFIG)
    lab.run("requeue", "json", "--yes")
    lab.wait_for("json", "done", attempt=2)
    assert json.loads(lab.attempt("json", 2).result.read_bytes())["loss"] == 2.359296
    pod.stop()
