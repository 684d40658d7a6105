"""What the week comes to: whether people were told once, whether the account adds up, and what is left."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Final

import diary
from lab import ADA, GRACE, Lab
from table import Table

_IDLE: Final = ("idle", "idle_waited", "idle_paused")
# What must have been told, by how it begins, and of how many jobs or pods; -1: of all lora jobs that failed.
TOLD: Final = {
    "job_failed: exit 4": 1,
    "job_failed: exit 1: FileNotFoundError": 3,
    "job_failed: exit 1: ValueError": -1,
    "job_failed: GPU idle for 2 s": 1,
    "job_failed: exit 1: RuntimeError": 1,
    "method_paused: lora is paused": 1,
    "job_stalled: no progress reported": 1,
    "gpu_idle: running, its GPUs idle": 1,
    "pod_dead: pod gpu-b on gpu-b is dead": 1,
    "matrix_done: no job is left to run": 1,
}
# What became of attempts that were stopped or killed, as people know.
KINDS: Final = {
    ("align", "stopped"): "cancelled",
    ("notebook", "stopped"): "failed",
    ("two", "killed"): "unknown_end",
}
# A percent, as the account promises; and what a witness that looks 30 times a second may miss of an attempt.
_SHARE: Final = 0.01
_EACH_S: Final = 0.1
# How much older than the death of a pod its last sign may be.
_SIGN_S: Final = 1.0
_HOUR_S: Final = 3600.0
# `(2026-11-25 23:01:52 UTC)` and `3 x ` of a line: targets may be told of the same at other times, in other bundles.
_WHEN_AND_HOW_OFTEN: Final = re.compile(r"^\d+ x | \([^()]*\)$")


def notices(lab: Lab, table: Table) -> None:
    """Each thing is told once to each target, although three pods see it."""
    arrived = lab.arrived()
    lora = sum(one.how == "failed" and one.method == "lora" for one in diary.read(lab.root / "diary"))
    wanted = {cause: lora if count == -1 else count for cause, count in TOLD.items()}
    for target in ("chat", "log"):
        told: Counter[str] = Counter()
        for notice in arrived[target]:
            for event in notice["events"]:
                cause = f"{event['event']}: {event['cause']}"
                told[next((known for known in TOLD if cause.startswith(known)), cause)] += event["count"]
        wrong = [f"{cause}: {told[cause]} times" for cause in {*told, *wanted} if told[cause] != wanted.get(cause, 0)]
        table.check(f"{target}: what was not told once for each", wrong, [])
        table.check(f"{target}: notices, and how many of them differ", *_with_ids(arrived[target]))
    # A mail is text: it says what the others have got as data.
    mails, log = ({line for one in arrived[target] for line in _causes(one["text"])} for target in ("mail", "log"))
    table.check("mail: what it told, or did not tell, unlike log", sorted(mails ^ log), [])
    sent = sum(map(len, arrived.values()))
    ended = [(line.data or {})["state"] for line in lab.fleet.history() if line.event == "notice_ended"]
    table.check("notices that arrived, by the journal", Counter(ended), {"sent": sent})
    table.check("notices that arrived, by `dispatcher notify`", lab.states_of_notices(), {"sent": sent})


def _with_ids(notices: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    count = len(notices)
    return [count, len({notice["id"] for notice in notices})], [count, count]


def _causes(text: str) -> list[str]:
    """The lines of a notice that name a cause."""
    lines = text.splitlines()[1:]
    return [_WHEN_AND_HOW_OFTEN.sub("", line) for line in lines if re.match(r"\S", line)]


def ledger(lab: Lab, table: Table) -> None:
    """The account adds up to wall time x slots, by witnesses that know nothing of its records."""
    usage = lab.json("usage", "--by", "method")
    kinds = {kind: hours["slots"] * _HOUR_S for kind, hours in usage["total"].items()}
    noted, lives = diary.read(lab.root / "diary"), lab.watch.lifetimes
    ends = {one: _end_s(lab, one) for one in noted}
    beside = sum(_beside_s(one, ends[one], lives) for one in noted)
    wall = sum(life.seconds * life.slots for life in lives) + beside
    _near(table, "slot-seconds: wall time x slots", kinds["total"], wall, _SHARE * wall)
    wall_gpus = sum(life.seconds * life.gpus for life in lives) + beside
    _near(table, "GPU-seconds", usage["total"]["total"]["gpus"] * _HOUR_S, wall_gpus, _SHARE * wall_gpus)
    spent: dict[str, list[float]] = {}
    for one in noted:
        seconds = ends[one] - lab.watch.began_s[one.job, one.attempt]
        spent.setdefault(KINDS.get((one.job, one.how), one.how), []).append(seconds * one.slots)
    of_attempts = kinds.keys() - {"total", *_IDLE}
    table.check("how attempts ended", sorted(of_attempts), sorted(spent))
    for kind in sorted({*spent, *of_attempts}):
        seconds, count = sum(spent.get(kind, [])), len(spent.get(kind, []))
        tolerance = _SHARE * seconds + (_SIGN_S if kind == "unknown_end" else _EACH_S) * count
        _near(table, f"slot-seconds {kind.replace('_', ' ')}: {count}", kinds.get(kind, 0.0), seconds, tolerance)
    idle = sum(kinds.get(kind, 0.0) for kind in _IDLE)
    tolerance = _SHARE * wall + _EACH_S * len(noted)
    _near(table, "slot-seconds idle", idle, wall - sum(map(sum, spent.values())), tolerance)
    rows = {row["values"]["user"]: row["hours"]["total"]["slots"] for row in lab.json("usage", "--by", "user")["rows"]}
    for user in (ADA, GRACE):
        seconds = [ends[one] - lab.watch.began_s[one.job, one.attempt] for one in noted if _user(one) == user]
        tolerance = _SHARE * sum(seconds) + _EACH_S * len(seconds) + _SIGN_S
        _near(table, f"slot-seconds of {user}'s jobs", rows.get(user, 0.0) * _HOUR_S, sum(seconds), tolerance)
    for by in ("user", "pod", "method,lang"):
        rows = lab.json("usage", "--by", by)["rows"]
        of_rows = sum(row["hours"]["total"]["slots"] for row in rows) * _HOUR_S
        _near(table, f"slot-seconds of all rows by {by}", of_rows, kinds["total"], 0.001 * wall)


def _user(one: diary.Noted) -> str:
    """Who has submitted it, or made the sweep; no job of theirs has more than one slot."""
    return ADA if one.method in ("fft", "lora", "notebook") or one.job in ("one", "two") else GRACE


def _end_s(lab: Lab, one: diary.Noted) -> float:
    """When an attempt ended. One that was killed while its pod was dead counts until the pod's last sign."""
    exit_file = lab.fleet.attempt(one.job, one.attempt).exit
    if exit_file.exists():
        return exit_file.stat().st_mtime
    began_s = lab.watch.began_s[one.job, one.attempt]
    return next(life.ended_s for life in lab.watch.lifetimes if life.pod == one.pod and (life.ended_s or 0) > began_s)


def _beside_s(one: diary.Noted, end_s: float, lives: list[diary.Lifetime]) -> float:
    """For how many slot-seconds an attempt ran on without its pod."""
    if one.job != "one":
        return 0.0
    killed = next(life for life in lives if life.pod == one.pod)
    return (end_s - (killed.ended_s or 0.0)) * one.slots


def _near(table: Table, what: str, seen: float, expected: float, tolerance: float) -> None:
    table.note(what, f"{expected:.1f} ± {tolerance:.1f}", f"{seen:.1f}", abs(seen - expected) <= tolerance)


def results(lab: Lab, table: Table, folder: Path) -> None:
    """The table of results has the means of what the jobs have noted, and a picture is made of it."""
    losses: dict[str, list[float]] = {}
    for one in diary.read(lab.root / "diary"):
        if one.how == "useful" and one.lang:
            losses.setdefault(f"{one.method} {one.lang}", []).extend([] if one.loss is None else [one.loss])
    means = {key: f"{statistics.mean(values):.4f} of {len(values)}" for key, values in sorted(losses.items())}
    rows = lab.json("results", "--by", "method,lang", "--value", "loss", "--where", "lang=*")
    seen = {f"{row['method']} {row['lang']}": f"{row['loss mean']:.4f} of {row['loss n']}" for row in rows}
    table.check("results: means of the loss", seen, means)
    picture = folder / "loss.png"
    bars = ("--rows", "lang", "--cols", "method", "--kind", "bars", "--value", "loss")
    lab.run(ADA, "results", *bars, "--plot", str(picture))
    table.check("results --plot: the picture begins with", picture.read_bytes()[1:4].decode(), "PNG")


def leftovers(lab: Lab, table: Table) -> None:
    """`clean` finds what earlier attempts have left, and removes nothing unless it is told to."""
    attempts: dict[str, list[int]] = {}
    for one in diary.read(lab.root / "diary"):
        attempts.setdefault(one.job, []).append(one.attempt)
    earlier = {f"jobs/{job}/{number}" for job, numbers in attempts.items() for number in sorted(numbers)[:-1]}
    # Of what was killed nobody knows whether something still writes there.
    earlier -= {"jobs/two/1"}
    before = _files(lab.root)
    listed = {row["what"] for row in lab.json("clean")["items"]}
    table.check("clean lists attempts that are not the last", len(listed), len(earlier))
    table.check("what it lists of others, or leaves out", sorted(listed ^ earlier), [])
    table.check("files that clean has removed without --yes", len(before - _files(lab.root)), 0)


def _files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}
