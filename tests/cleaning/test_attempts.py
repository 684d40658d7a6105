"""`dispatcher clean --attempts`: what is removed, and above all what is not."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import commands
import pytest
from fleet import COMMAND, Fleet, shell, wait_until

from dispatcher.api import Workspace
from dispatcher.cleaning.attempts import KEPT, SILENT_S, _not_free_text

# A failing job that leaves a log, a directory and its number.
LEAVES = 'echo said; cd "$DISPATCHER_ATTEMPT_DIR"; mkdir out; head -c 100000 /dev/zero >out/big; exit 3'


def ran(fleet: Fleet, *scripts: str, retries: int = 2, **jobs: str) -> None:
    """Run each job as often as it may fail."""
    entries = [shell(job, script, retries=retries) for job, script in jobs.items()]
    fleet.write_config("methods: {m: {backoff: 0.01s}}\n")
    fleet.write_manifest(entries)
    fleet.run_all()


def tree(path: Path) -> dict[str, bytes]:
    """All files below a directory with their content; links with what they name."""
    found = {}
    for folder, names, files in os.walk(path):
        for name in [*files, *(name for name in names if os.path.islink(os.path.join(folder, name)))]:
            file = Path(folder, name)
            content = os.readlink(file).encode() if file.is_symlink() else file.read_bytes()
            found[str(file.relative_to(path))] = content
    return found


def left_of(fleet: Fleet, job: str, number: int) -> set[str]:
    return set(os.listdir(fleet.attempt(job, number).directory))


def listed(text: str) -> list[str]:
    """The lines of the table, without the times."""
    return [
        line.rpartition("iB")[0] for line in text.splitlines() if line.startswith(("jobs/", "provenance/", "code/"))
    ]


def firsts(text: str) -> list[str]:
    """What is listed."""
    return [line.split()[0] for line in listed(text)]


def is_clean(fleet: Fleet, job: str, number: int) -> bool:
    names = left_of(fleet, job, number)
    return "cleaned.json" in names and names <= KEPT


def test_old_attempts_of_a_failed_job_keep_their_records_only(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES)
    before = {number: tree(fleet.attempt("a", number).directory) for number in (1, 2, 3)}
    shown = json.loads(fleet.run("show", "a", "--json"))
    dry = fleet.run("clean")
    assert {number: tree(fleet.attempt("a", number).directory) for number in (1, 2, 3)} == before
    assert firsts(dry) == ["jobs/a/1", "jobs/a/2"]
    done = fleet.run("clean", "--yes")
    assert listed(done) == listed(dry)
    assert tree(fleet.attempt("a", 3).directory) == before[3]
    for number in (1, 2):
        after = tree(fleet.attempt("a", number).directory)
        note = json.loads(after.pop("cleaned.json"))
        assert note["bytes"] >= 100_000 and note["files"] >= 3
        assert after == {name: data for name, data in before[number].items() if name in KEPT}
        assert "exit.json" in after and "taken" in after and "output.log" not in after
    again = json.loads(fleet.run("show", "a", "--json"))
    for old, new in zip(shown["attempts"], again["attempts"], strict=True):
        assert {**old, "log_bytes": None, "cleaned_at": None} == {**new, "log_bytes": None, "cleaned_at": None}
    assert [row["cleaned_at"] is not None for row in again["attempts"]] == [True, True, False]
    assert fleet.run("clean", "--yes").strip() == "nothing to remove"
    # Numbers are not given again.
    fleet.run("requeue", "a")
    fleet.run_all()
    assert fleet.record("a").attempt == 6


def test_sums_are_those_of_the_disk(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES, retries=1)
    directory = fleet.attempt("a", 1).directory
    # Another name of it stays outside, so its bytes are not free afterwards.
    os.link(directory / "output.log", fleet.root / "elsewhere")
    os.link(directory / "out" / "big", directory / "out" / "same")
    plan = json.loads(fleet.run("clean", "--json"))
    kept = sum(os.stat(directory / name).st_blocks for name in os.listdir(directory) if name in KEPT)
    whole = sum(os.lstat(path).st_blocks for path in directory.rglob("*"))
    log, twice = os.stat(directory / "output.log").st_blocks, os.stat(directory / "out" / "big").st_blocks
    done = json.loads(fleet.run("clean", "--yes", "--json"))
    assert plan["items"] == done["items"]
    assert plan["bytes"] == done["bytes"] == 512 * (whole - kept - log - twice)
    assert plan["files"] == done["files"] and not plan["removed"] and done["removed"] and done["failed"] == []


def test_only_jobs_that_are_over(fleet: Fleet) -> None:
    fleet.write_config("methods: {m: {backoff: 0.01s}}\n")
    wait = "[[ $DISPATCHER_ATTEMPT != 3 ]] || { echo begun; exec sleep 600; }; echo said; exit 3"
    fleet.write_manifest([shell(job, wait, retries=2) for job in ("queued", "held", "running", "over")])
    pod = fleet.start("pod", "--slots", "4")
    for job in ("queued", "held", "running", "over"):
        fleet.wait_running(job, 3)
    fleet.run("hold", "held")
    fleet.run("cancel", "over")
    fleet.wait_for("held", "held")
    fleet.wait_for("over", "abandoned")
    fleet.run("drain", "pod")
    pod.says("requested by `dispatcher drain`")
    fleet.run("requeue", "queued")
    fleet.wait_for("queued", "queued")
    alive = ("queued", "held", "running")
    attempts = [fleet.attempt(job, number) for job in alive for number in (1, 2, 3)]
    wait_until(lambda: all(one.provenance.exists() for one in attempts), "what they ran from is recorded")
    before = {job: tree(fleet.layout.job_dir(job)) for job in alive}
    done = fleet.run("clean", "--yes")
    assert firsts(done) == ["jobs/over/1", "jobs/over/2"]
    assert {job: tree(fleet.layout.job_dir(job)) for job in before} == before
    fleet.run("cancel", "running")
    fleet.wait_for("running", "abandoned")


def test_the_last_success_stays_and_what_waiting_jobs_name(fleet: Fleet) -> None:
    ran(fleet, a="echo said; [[ $DISPATCHER_ATTEMPT == 2 ]] || exit 3", b=LEAVES, c=LEAVES)
    assert fleet.record("a").attempt == 2
    fleet.run("requeue", "a", "--state", "done")
    fleet.run_all()
    assert fleet.states()["a"] == "failed" and fleet.record("a").attempt == 5
    entries = [shell(job, LEAVES) for job in "abc"]
    needs = {"init_from": "run_state/jobs/b/1/out/big", "needs": ["c"]}
    reads = f"cat {fleet.attempt('c', 2).directory}/out"
    parts = shell("f", "true", base="a", number=3) | {"command": ["cat", "run_state/jobs/{base}/{number}/model"]}
    fleet.write_manifest([*entries, shell("d", "true", **needs), shell("e", reads), parts])
    assert firsts(fleet.run("clean")) == ["jobs/a/1", "jobs/a/4", "jobs/b/2", "jobs/c/1"]
    assert firsts(fleet.run("clean", "--keep", "2", "b", "a")) == ["jobs/a/1"]


def test_what_a_running_attempt_names_stays_though_the_manifest_has_changed(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES)
    a, b = shell("a", LEAVES), shell("b", "echo begun; exec sleep 600")
    fleet.write_manifest([a, b | {"init_from": "run_state/jobs/a/1/out"}])
    fleet.start()
    fleet.wait_running("b")
    fleet.write_manifest([a, b | {"init_from": "elsewhere"}])
    assert firsts(fleet.run("clean")) == ["jobs/a/2"]


def test_the_last_checkpoint_of_a_job_that_is_not_done_stays(fleet: Fleet) -> None:
    """A job that is queued again resumes from it, also when later attempts failed before their first checkpoint."""
    saves = 'cd "$DISPATCHER_ATTEMPT_DIR"; echo x >model; '
    saves += """(( DISPATCHER_ATTEMPT > 2 )) || echo '{"step": 5}' >checkpoint.json"""
    ran(fleet, retries=3, failed=f"{saves}; exit 3", done=f"{saves}; (( DISPATCHER_ATTEMPT == 4 ))")
    assert fleet.states() == {"failed": "failed", "done": "done"}
    assert firsts(fleet.run("clean", "--yes")) == [
        "jobs/done/1", "jobs/done/2", "jobs/done/3", "jobs/failed/1", "jobs/failed/3",
    ]  # fmt: skip
    assert (fleet.attempt("failed", 2).directory / "model").exists()


def test_an_attempt_whose_lock_is_held_may_be_running(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES)
    before = tree(fleet.attempt("a", 1).directory)
    with open(fleet.attempt("a", 1).alive, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ran_clean = fleet.try_("clean", "--yes")
        assert "1 attempt left alone (jobs/a/1): may be running" in ran_clean.stderr
        skipped = json.loads(fleet.run("clean", "--json"))["skipped"]
        assert skipped == [{"what": "jobs/a/1", "why": "may be running"}]
        assert tree(fleet.attempt("a", 1).directory) == before
        assert is_clean(fleet, "a", 2)
    fleet.run("clean", "--yes")
    assert is_clean(fleet, "a", 1)


def test_what_has_changed_since_the_list_was_made_is_left_alone(fleet: Fleet) -> None:
    ran(fleet, again=LEAVES, held=LEAVES, over=LEAVES, retries=1)
    plan = Workspace(fleet.root).clean(what=["attempts"])
    assert [item.what for item in plan.items] == ["jobs/again/1", "jobs/held/1", "jobs/over/1"]
    before = {job: tree(fleet.attempt(job, 1).directory) for job in ("again", "held")}
    fleet.run("requeue", "again")
    with open(fleet.attempt("held", 1).alive, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        plan.remove()
    assert {job: tree(fleet.attempt(job, 1).directory) for job in ("again", "held")} == before
    assert plan.skipped == {"may be running": ["jobs/held/1"]}
    assert is_clean(fleet, "over", 1)


def test_one_without_an_exit_status_must_be_silent_for_a_day(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES)
    directory = fleet.attempt("a", 1).directory
    fleet.attempt("a", 1).exit.unlink()
    assert "no exit status, and written to within a day" in fleet.try_("clean", "--yes").stderr
    assert "output.log" in left_of(fleet, "a", 1)
    old = time.time() - SILENT_S - 60
    for path in (*directory.iterdir(), directory):
        os.utime(path, (old, old))
    # The log alone was written to.
    os.utime(fleet.attempt("a", 1).log)
    assert listed(fleet.run("clean")) == []
    os.utime(fleet.attempt("a", 1).log, (old, old))
    fleet.attempt("a", 1).alive.unlink()
    assert "may be running" in fleet.try_("clean", "--yes").stderr, "without a lock nothing is proved"
    fleet.attempt("a", 1).alive.touch()
    os.utime(fleet.attempt("a", 1).alive, (old, old))
    assert firsts(fleet.run("clean", "--yes")) == ["jobs/a/1"]
    assert is_clean(fleet, "a", 1)


def test_older_than_and_where(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES, b=LEAVES, retries=1)
    old = time.time() - 3 * 86400
    os.utime(fleet.attempt("a", 1).exit, (old, old))
    assert firsts(fleet.run("clean", "--older-than", "2d")) == ["jobs/a/1"]
    assert listed(fleet.run("clean", "--older-than", "4d")) == []
    assert firsts(fleet.run("clean", "--where", "job_id=b")) == ["jobs/b/1"]
    assert fleet.try_("clean", "nosuch").returncode == 2
    assert fleet.try_("clean", "--keep", "0").returncode == 2
    assert "output.log" in left_of(fleet, "b", 1)


def test_jobs_whose_records_were_deleted(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES, b=LEAVES)
    fleet.write_manifest([shell("b", LEAVES)])
    fleet.run("delete", "a", "--yes")
    # No record says what became of this one, and no journal that it was deleted.
    stranger = fleet.layout.job_dir("stranger") / "1"
    stranger.mkdir(parents=True)
    (stranger / "output.log").write_text("mine")
    assert firsts(fleet.run("clean", "a", "--yes")) == [
        "jobs/a/1",
        "jobs/a/2",
        "jobs/a/3",
    ]
    assert all(is_clean(fleet, "a", number) for number in (1, 2, 3))
    fleet.run("clean", "--yes")
    assert (stranger / "output.log").read_text() == "mine"
    # It is back, and goes on with numbers of its own.
    fleet.write_manifest([shell("a", LEAVES), shell("b", LEAVES)])
    fleet.run_all()
    assert fleet.record("a").attempt == 4 and "output.log" in left_of(fleet, "a", 4)


def test_links_are_removed_and_what_they_name_is_not(fleet: Fleet, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "precious").write_text("precious")
    (outside / "1").mkdir()
    (outside / "1" / "output.log").write_text("precious")
    ran(fleet, a=LEAVES, b=LEAVES, c=LEAVES)
    before = tree(outside)
    one = fleet.attempt("a", 1).directory
    (one / "link").symlink_to(outside)
    (one / "file").symlink_to(outside / "deep" / "precious")
    (one / "up").symlink_to("../../../..")
    (one / "out" / "link").symlink_to(outside)
    (one / "loop").symlink_to("loop")
    # The directory of a job, and that of an attempt, are links themselves.
    os.rename(fleet.layout.job_dir("b"), tmp_path / "b")
    fleet.layout.job_dir("b").symlink_to(outside)
    os.rename(fleet.attempt("c", 1).directory, tmp_path / "c")
    fleet.attempt("c", 1).directory.symlink_to(outside / "1")
    moved = tree(tmp_path / "c"), tree(tmp_path / "b")
    fleet.run("clean", "--yes")
    assert tree(outside) == before
    assert is_clean(fleet, "a", 1) and is_clean(fleet, "c", 2)
    assert (tree(tmp_path / "c"), tree(tmp_path / "b")) == moved
    assert fleet.layout.job_dir("b").is_symlink() and fleet.attempt("c", 1).directory.is_symlink()


def test_jobs_on_another_disk(fleet: Fleet, tmp_path: Path) -> None:
    ran(fleet, a=LEAVES)
    os.rename(fleet.layout.jobs_dir, tmp_path / "scratch")
    fleet.layout.jobs_dir.symlink_to(tmp_path / "scratch")
    assert len(listed(fleet.run("clean", "--yes"))) == 2
    assert is_clean(fleet, "a", 1) and "output.log" in left_of(fleet, "a", 3)


def test_names_that_nobody_would_choose(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES, retries=1)
    one = fleet.attempt("a", 1).directory
    hostile = [b"a\nb", b"\x1b[2J", b"\xff\xfe", b"-rf", b"--", b" ", b"*", b"exit.json ", b"x" * 255]
    for name in hostile:
        Path(os.fsdecode(os.path.join(os.fsencode(one), name))).write_text("x")
    deep = one
    for _ in range(120):
        deep = deep / "d"
    deep.mkdir(parents=True)
    os.mkfifo(one / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        cwd = os.getcwd()
        os.chdir(one)
        listener.bind("s")
        os.chdir(cwd)
    # What is no number, or none as the dispatcher writes them.
    others = [fleet.layout.job_dir("a") / name for name in ("01", "1x", "latest", ".1", "0", "-1", "1234567890")]
    for other in others:
        other.mkdir()
        (other / "output.log").write_text("mine")
    before = [tree(other) for other in others]
    done = fleet.run("clean", "--yes")
    assert is_clean(fleet, "a", 1) and "\x1b" not in done
    assert [tree(other) for other in others] == before


def test_too_deep_is_said_and_left(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES, retries=1)
    fd = os.open(fleet.attempt("a", 1).directory, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    done = fleet.try_("clean", "--yes")
    assert done.returncode == 1 and "one in the other" in done.stderr and "Traceback" not in done.stderr
    assert "output.log" not in left_of(fleet, "a", 1)
    subprocess.run(["rm", "-rf", fleet.attempt("a", 1).directory / "d"], check=True)


def test_what_is_mounted_is_not_entered(fleet: Fleet, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    ran(fleet, a=LEAVES)
    place = fleet.attempt("a", 1).directory / "mnt"
    place.mkdir()
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", str(outside), str(place), *COMMAND, "clean", "--yes"]
    done = subprocess.run(words, cwd=fleet.root, env=fleet.environment(), capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert "something is mounted" in done.stderr
    assert (outside / "precious").read_text() == "precious" and "output.log" in left_of(fleet, "a", 1)
    assert is_clean(fleet, "a", 2)


def test_a_directory_that_cannot_be_changed_is_said(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES)
    one = fleet.attempt("a", 1).directory
    (one / "locked").mkdir()
    (one / "locked" / "file").write_text("x")
    fleet.root.chmod(0o755)
    os.chmod(one / "locked", 0o555)
    # Root may change everything.
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    words = COMMAND if os.geteuid() else [*without, *COMMAND]
    done = commands.run(
        [*words, "clean", "--yes"], cwd=fleet.root, env=fleet.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done
    assert "not removed: jobs/a/1/locked/file: Permission denied" in done.stderr
    assert left_of(fleet, "a", 1) - KEPT == {"locked"} and is_clean(fleet, "a", 2)
    os.chmod(one / "locked", 0o755)
    assert fleet.try_("clean", "--yes").returncode == 0
    assert is_clean(fleet, "a", 1)


def many_files(fleet: Fleet, number: int) -> None:
    for attempt in (1, 2):
        for folder in range(10):
            place = fleet.attempt("a", attempt).directory / "many" / str(folder)
            place.mkdir(parents=True)
            for file in range(number // 20):
                (place / str(file)).touch()


def count_of(directory: Path) -> int:
    """The number of files in a directory, which may be removed at this moment."""
    try:
        return len(os.listdir(directory))
    except FileNotFoundError:
        return 0


def test_killed_in_the_middle_the_rest_is_removed_by_the_next(fleet: Fleet, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    ran(fleet, a=LEAVES)
    many_files(fleet, 20_000)
    (fleet.attempt("a", 2).directory / "many" / "link").symlink_to(outside)
    records = {n: {k: v for k, v in tree(fleet.attempt("a", n).directory).items() if k in KEPT} for n in (1, 2)}
    last = tree(fleet.attempt("a", 3).directory)
    kills = 0
    while True:
        process = commands.Popen(
            [*COMMAND, "clean", "--yes"], cwd=fleet.root, env=fleet.environment(), stdout=subprocess.DEVNULL
        )
        first = fleet.attempt("a", 2 if is_clean(fleet, "a", 1) else 1).directory
        count = count_of(first / "many")
        while process.poll() is None:
            # In the middle of its work, each time a little later.
            if count_of(first / "many") < count:
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
        if process.wait() == 0:
            break
        for number, kept in records.items():
            after = {k: v for k, v in tree(fleet.attempt("a", number).directory).items() if k in KEPT}
            after.pop("cleaned.json", None)
            assert after == kept
        assert tree(fleet.attempt("a", 3).directory) == last
    assert kills >= 2, "no cleaner was killed in the middle"
    assert is_clean(fleet, "a", 1) and is_clean(fleet, "a", 2)
    assert (outside / "precious").read_text() == "precious"
    assert tree(fleet.attempt("a", 3).directory) == last


def test_two_cleaners_at_once(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES)
    many_files(fleet, 10_000)
    plan = json.loads(fleet.run("clean", "--json"))
    processes = [
        commands.Popen(
            [*COMMAND, "clean", "--yes", "--json"], cwd=fleet.root, env=fleet.environment(), stdout=subprocess.PIPE
        )
        for _ in range(3)
    ]
    outcomes: list[dict[str, Any]] = [json.loads(process.communicate()[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outcomes
    assert [outcome["failed"] for outcome in outcomes] == [[], [], []]
    # What one has removed the others do not claim.
    assert sum(outcome["files"] for outcome in outcomes) == plan["files"]
    assert sum(outcome["bytes"] for outcome in outcomes) == plan["bytes"]
    assert is_clean(fleet, "a", 1) and is_clean(fleet, "a", 2)


def test_beside_running_pods_no_attempt_loses_anything(fleet: Fleet) -> None:
    """Jobs fail, are retried and run again while cleaners go over them; each looks after its own files."""
    script = (
        'cd "$DISPATCHER_ATTEMPT_DIR"; mkdir d; echo x >d/f;'
        " echo begun; before=$((DISPATCHER_ATTEMPT - 1));"
        # What the last attempt has left is there when the next begins, as one does that resumes from it.
        "[[ $before == 0 || -s ../$before/d/f ]] || exit 9;"
        "for i in 1 2 3 4 5; do sleep 0.05; [[ -s d/f && -s output.log && -s job.sh ]] || exit 8; done;"
        # Jobs that fail alike would have their method paused.
        "((DISPATCHER_ATTEMPT % 3)) && exit $((20 + ${DISPATCHER_JOB_ID#j})); exit 0"
    )
    jobs = [f"j{number}" for number in range(12)]
    fleet.write_config("methods: {m: {backoff: 0.01s, retries: 2}}\nheartbeat: 0.5s\nlost_after: 20s\n")
    fleet.write_manifest([shell(job, script) for job in jobs])
    for pod in ("p", "q"):
        fleet.start(pod, "--slots", "3", poll="0.5")
    cleaners: list[subprocess.Popen[bytes]] = []
    cleaned = 0
    end_s = time.monotonic() + 60
    for _ in range(2):
        while [fleet.states().get(job) for job in jobs] != ["done"] * len(jobs):
            assert time.monotonic() < end_s, fleet.states()
            bad = {job: r.exit_code for job, r in fleet.records().items() if r.exit_code in (8, 9)}
            assert not bad, bad
            cleaners = [
                commands.Popen(
                    [*COMMAND, "clean", "--yes", "--json"],
                    cwd=fleet.root, env=fleet.environment(), stdout=subprocess.PIPE,
                )
                for _ in range(2)
            ]  # fmt: skip
            for cleaner in cleaners:
                outcome = json.loads(cleaner.communicate()[0])
                assert outcome["failed"] == []
                cleaned += outcome["files"]
        end_s += 60
        fleet.run("requeue", "--state", "done", "j*", "--yes")
    for job in jobs:
        record = fleet.wait_for(job, "done")
        numbers, code = range(1, record.attempt + 1), 20 + int(job[1:])
        assert [fleet.exit_file(job, n)["exit_code"] for n in numbers] == [code if n % 3 else 0 for n in numbers]
    assert cleaned > 0, "nothing was cleaned while the pods ran"


def test_on_a_full_disk_there_is_room_afterwards(small_disk: Path) -> None:
    from fleet import fleet_at

    with fleet_at(small_disk / "lab", small_disk.parent / "said") as fleet:
        fleet.variables = {"TMPDIR": str(small_disk.parent)}
        ran(fleet, a=LEAVES)
        rest = os.statvfs(small_disk)
        with open(small_disk / "rest", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, rest.f_bavail * rest.f_frsize)
        with pytest.raises(OSError, match="No space"):
            (small_disk / "more").write_bytes(b"x")
        fleet.run("clean", "--yes")
        assert is_clean(fleet, "a", 1) and is_clean(fleet, "a", 2)


def test_an_attempt_that_cannot_be_read_is_named(fleet: Fleet) -> None:
    ran(fleet, a=LEAVES)
    directory = fleet.attempt("a").directory
    directory.rename(directory.with_name("kept"))
    directory.write_text("a file")
    said = fleet.try_("clean", "--attempts").stderr
    assert "1 attempt left alone (jobs/a/1): cannot be read (Not a directory)" in said


def test_a_user_who_may_not_open_the_lock_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "alive").touch()
    (tmp_path / "alive").chmod(0)
    tmp_path.chmod(0o755)
    me = os.geteuid()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        if me == 0:
            os.seteuid(65534)
        assert "may not open their locks" in _not_free_text(fd)
    finally:
        os.seteuid(me)
        os.close(fd)
