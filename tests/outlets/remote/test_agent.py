"""The agent on this machine: every operation, and what it does where something is in the way."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fleet import wait_until
from outlets.remote.calls import ask

from dispatcher import contract
from dispatcher.base import host
from dispatcher.outlets.local import processes
from dispatcher.outlets.remote import agent
from dispatcher.outlets.remote.agent import names, programs
from dispatcher.outlets.remote.agent_source import agent_source
from dispatcher.outlets.remote.connection import Connection, Lane
from dispatcher.outlets.remote.exchange import BEGUN, Exchange, agent_command, agent_words
from dispatcher.outlets.remote.operations import (
    ANSWERS,
    KNOWN_END,
    AttemptFiles,
    AttemptRead,
    Check,
    Deliver,
    Delivered,
    Failed,
    FileSizes,
    Grown,
    Has,
    Hello,
    Launch,
    Ran,
    Read,
    Remove,
    Removed,
    Run,
    Signal,
    Store,
    Stored,
    Tail,
    TailRead,
    TreeList,
    Trees,
    Write,
    Written,
)
from dispatcher.outlets.remote.transport import LocalTransport

ODD = "it's; $(touch pwned)\n\"'\\ \u00e4"


@pytest.fixture
def here() -> Iterator[Connection]:
    connection = Connection("here", LocalTransport("here"))
    yield connection
    connection.close()


def test_all_modules_are_sent() -> None:
    files = {path.stem for path in Path(agent.__file__).parent.glob("*.py")}
    assert files - {"__init__"} == set(agent.MODULES)
    ast.parse(agent_source(), feature_version=(3, 6))


@pytest.mark.parametrize("name", agent.MODULES)
def test_it_runs_on_old_pythons(name: str) -> None:
    source = Path(agent.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 6))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    sent_before = {f"{agent.__name__}.{other}" for other in agent.MODULES[: agent.MODULES.index(name)]}
    assert imported - sent_before <= sys.stdlib_module_names
    assert not imported & {"dataclasses", "contextvars", "zoneinfo", "tomllib", "__future__"}
    # What came later than Python 3.6 and a parser does not see.
    later = {
        "removeprefix",
        "removesuffix",
        "time_ns",
        "capture_output",
        "missing_ok",
        "nullcontext",
        "cached_property",
    }
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.arg or "" for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    assert not used & later


def old_pythons() -> list[str]:
    """Those on PATH that can be started."""
    found = []
    for minor in range(6, 11):
        path = shutil.which(f"python3.{minor}")
        if path and not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode:
            found.append(path)
    return found


@pytest.mark.parametrize("python", old_pythons() or [pytest.param("", marks=pytest.mark.skip("no older Python here"))])
def test_with_an_older_python(python: str, tmp_path: Path) -> None:
    directory, words = os.fspath(tmp_path / "1"), ["sh", "-c", "echo ä"]
    operations = [
        Hello(programs=["bash"]),
        Run(words=words),
        Deliver(directory=directory, files={"job.sh": b"touch $DISPATCHER_ATTEMPT_DIR/taken"}, links={"l": "x"}),
        Launch(directory=directory, root="/", log=os.fspath(tmp_path / "log")),
        Check(directories=[directory]),
        Read(looks=[AttemptRead(directory=directory, growing={"output.log": (0, 0)})], names=["job.sh"]),
        Write(path=f"{directory}/stop", content=b"x"),
        Tail(path=f"{directory}/stop"),
        Signal(directory=directory),
        Has(paths=[directory]),
    ]
    exchange = Exchange(operations, 60)
    done = subprocess.run(agent_words(python), input=exchange.request, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    answers = exchange.answers(done.stdout)
    assert answers is not None
    assert [type(answer) for answer in answers] == [ANSWERS[type(operation)] for operation in operations], answers
    wait_until(lambda: not processes.of_attempt(tmp_path / "1"), "it has ended")


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "tcsh", "fish"])
def test_with_another_login_shell(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    operations = [Run(words=["printf", "%s", ODD])]
    exchange = Exchange(operations, 60)
    command = [shell, "-c", agent_command(sys.executable)]
    done = subprocess.run(command, input=exchange.request, capture_output=True, check=False)
    assert exchange.answers(done.stdout) == [Ran(exit_code=0, out=ODD)], done.stderr


def test_it_knows_the_files_of_an_attempt() -> None:
    for name in ("ATTEMPT_DIR", "WRAPPER_FILE", "LOG_FILE", "EXIT_FILE", "ALIVE_FILE", "TAKEN_FILE"):
        assert getattr(names, name) == getattr(contract, name)


def test_where_one_has_arrived(here: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nonce").write_text("0123")
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    hello = Hello(
        programs=("bash", "no-such-program"),
        directories={"home": "~/x", "work": "$SCRATCH/d"},
        probe=os.fspath(tmp_path / "nonce"),
    )
    found = ask(here, hello)
    assert (found.host, found.boot_id) == (host.host_name(), host.boot_id())
    assert set(found.programs) == {"bash"}
    assert found.directories == {"home": os.path.expanduser("~/x"), "work": "/scratch/me/d"}
    assert found.probe == "0123"
    assert ask(here, Hello(probe=os.fspath(tmp_path / "none"))).probe is None


def test_programs(here: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = {
        "SLURM_JOB_ID",
        "SBATCH_TIMELIMIT",
        "SQUEUE_STATES",
        "PBS_NODEFILE",
        "PMIX_RANK",
        "OMPI_MCA_orte_hnp_uri",
        "TMPDIR",
    }
    for name in dropped:
        monkeypatch.setenv(name, "x")
    for name in ("SLURM_CLUSTERS", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS"):
        monkeypatch.setenv(name, "alpha")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("PBS_SERVER", "pbs")
    told, status, killed, missing, over = ask(
        here,
        Run(words=["sh", "-c", 'cat; printf "%s" "$1"; echo no >&2', "sh", ODD], stdin=ODD, environment={"A": "b"}),
        Run(words=["sh", "-c", "exit 255"]),
        Run(words=["sh", "-c", "kill -9 $$"]),
        Run(words=["/no/such/program"]),
        Run(words=["sh", "-c", "echo begun; sleep 600 & wait"], timeout_s=0.3),
    )
    assert told == Ran(exit_code=0, out=ODD + ODD, err="no\n")
    assert (status.exit_code, killed.exit_code, over.exit_code, over.out) == (255, -9, None, "begun\n")
    assert missing == Failed(error="/no/such/program: No such file or directory", errno=2)
    names = ask(here, Run(words=["env"], environment={"A": "b", "SBATCH_QOS": None})).out.splitlines()
    assert {"SLURM_CLUSTERS=alpha", "SBATCH_ACCOUNT=alpha", "SBATCH_PARTITION=alpha"} <= set(names)
    assert {"A=b", "SLURM_CONF=/etc/slurm.conf", "PBS_SERVER=pbs"} <= set(names)
    assert not {name.partition("=")[0] for name in names} & {*dropped, "SBATCH_QOS"}


def test_a_part_of_an_answer_is_no_answer(here: Connection) -> None:
    """What a list lacks that was cut off would be taken for what there is not."""
    words = ["head", "--bytes", str((16 << 20) + 1), "/dev/zero"]
    assert ask(here, Run(words=words)) == Failed(error="head printed more than 16 MiB")


def has_ended(pid: int) -> bool:
    """Also where the process that it was left to has not asked for its exit status."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_program_ends_with_the_call_that_is_given_up(tmp_path: Path) -> None:
    connection, told = Connection("here", LocalTransport("here")), tmp_path / "pid"
    connection.call([Run(words=["sh", "-c", 'echo $$ >"$0"; exec sleep 600', os.fspath(told)])], timeout_s=60)
    wait_until(lambda: told.exists() and told.read_text(), "it runs")
    pid = int(told.read_text())
    assert psutil.pid_exists(pid)
    connection.close(within_s=0.0)
    wait_until(lambda: has_ended(pid), "it has ended")


def test_a_program_ends_with_a_call_that_is_given_up_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **how: Any) -> None:
            super().__init__(*words, **how)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(programs.subprocess, "Popen", Popen)
    try:
        with pytest.raises(SystemExit):
            programs.run_program(["sleep", "600"], b"", dict(os.environ), "/", 60)
        assert started[0].wait(60) == -signal.SIGKILL
    finally:
        started[0].kill()


def test_a_delivery(here: Connection, tmp_path: Path) -> None:
    directory, script = tmp_path / "a'; b\n" / "1", tmp_path / "scripts" / "train.py"
    delivery = Deliver(
        directory=os.fspath(directory),
        files={"job.sh": ODD.encode(), "entry.json": bytes(range(256))},
        shared={os.fspath(script): b"print()"},
        links={"there": "/some where"},
        executable=["job.sh"],
        umask=0o007,
    )
    assert ask(here, delivery, delivery) == [Delivered(), Delivered()]
    assert (directory / "entry.json").read_bytes() == bytes(range(256))
    assert (directory / "job.sh").stat().st_mode & 0o777 == 0o770
    assert script.stat().st_mode & 0o777 == 0o660
    assert os.readlink(directory / "there") == "/some where"
    assert sorted(path.name for path in directory.iterdir()) == ["entry.json", "job.sh", "there"]
    # One that runs keeps its files: bash reads a script while it runs it.
    (directory / "taken").touch()
    again = Deliver(directory=os.fspath(directory), files={"job.sh": b"new"}, shared={os.fspath(script): b"new"})
    assert ask(here, again) == Delivered(was_taken=True)
    assert (directory / "job.sh").read_bytes() == ODD.encode()
    assert script.read_bytes() == b"print()"


def test_one_failure_does_not_spoil_the_others(here: Connection, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "job.sh").mkdir()
    in_the_way, no_directory, written = ask(
        here,
        Deliver(directory=os.fspath(tmp_path / "good"), files={"job.sh": b""}),
        Deliver(directory=os.fspath(tmp_path / "file" / "1"), files={"job.sh": b""}),
        Write(path=os.fspath(tmp_path / "new" / "superseded"), content=b"x"),
    )
    assert isinstance(in_the_way, Failed)
    assert os.fspath(tmp_path / "good" / "job.sh") in in_the_way.error
    assert isinstance(no_directory, Failed)
    assert "file" in no_directory.error
    assert written == Written(existed=False)
    assert os.listdir(tmp_path / "good") == ["job.sh"], "no temporary file is left"


def test_what_needs_others_is_not_done_when_one_of_them_has_failed(here: Connection, tmp_path: Path) -> None:
    well = Write(path=os.fspath(tmp_path / "well"), content=b"")
    ill = Write(path="/proc/nowhere/file", content=b"")
    touch = Run(words=["touch", os.fspath(tmp_path / "touched")], only_after=2)
    failed = ask(here, ill, well, touch)[2]
    assert isinstance(failed, Failed)
    assert failed.error.startswith("not done")
    assert not (tmp_path / "touched").exists()
    assert isinstance(ask(here, well, well, touch)[2], Ran)
    assert (tmp_path / "touched").exists()


def test_what_exists_is_not_written_again(here: Connection, tmp_path: Path) -> None:
    path = tmp_path / "stop"
    first, second = (Write(path=os.fspath(path), content=word) for word in (b"preempted\n", b"other\n"))
    assert ask(here, first, second) == [Written(existed=False), Written(existed=True)]
    assert path.read_bytes() == b"preempted\n"
    assert os.listdir(tmp_path) == ["stop"]


def test_a_full_disk(here: Connection, small_disk: Path) -> None:
    answer, written = ask(
        here,
        Deliver(directory=os.fspath(small_disk / "1"), files={"job.sh": bytes(8 << 20)}),
        Write(path=os.fspath(small_disk / "1" / "stop"), content=b"x"),
    )
    assert isinstance(answer, Failed)
    assert answer.error == f"{small_disk}/1/job.sh: No space left on device"
    assert written == Written(), "what failed has given its room back"
    assert os.listdir(small_disk / "1") == ["stop"]


def test_what_is_new_of_an_attempt(here: Connection, tmp_path: Path) -> None:
    directory = os.fspath(tmp_path)
    names = ("exit.json", "progress.json", "result.json")
    (tmp_path / "output.log").write_bytes(b"0123456789")
    (tmp_path / "progress.json").write_text("{}")
    (seen,) = ask(
        here, Read(looks=[AttemptRead(directory=directory, growing={"output.log": (0, 0)})], names=names)
    ).seen
    assert (seen.files, seen.is_alive) == ({"progress.json": b"{}"}, False)
    assert seen.grown == {"output.log": Grown(content=b"0123456789", at=0, size=10)}
    (tmp_path / "exit.json").write_text("ended")
    known = {"output.log": (10, zlib.crc32(b"0123456789"))}
    look = AttemptRead(directory=directory, growing=known, have=seen.stamps)
    (more,) = ask(here, Read(looks=[look], names=names)).seen
    assert (more.files, more.grown) == ({"exit.json": b"ended"}, {"output.log": Grown(at=10, size=10)})
    # A log that the job has begun anew, and more than is wanted at once.
    (tmp_path / "output.log").write_bytes(b"abcdef")
    part = {"output.log": (2, zlib.crc32(b"ab"))}
    looks = [AttemptRead(directory=directory, growing=known), AttemptRead(directory=directory, growing=part)]
    first, second = ask(here, Read(looks=looks, names=(), most_bytes=8)).seen
    assert first.grown == {"output.log": Grown(content=b"abcdef", at=0, size=6)}
    assert second.grown == {"output.log": Grown(content=b"cd", at=2, size=6)}
    # Another one of its name is longer than what is known.
    (tmp_path / "output.log").write_bytes(b"another log")
    (third,) = ask(here, Read(looks=[AttemptRead(directory=directory, growing=known)], names=())).seen
    assert third.grown == {"output.log": Grown(content=b"another log", at=0, size=11)}


def test_of_a_long_file_its_end_tells_whether_it_is_the_same(here: Connection, tmp_path: Path) -> None:
    content = b"%d\n" * 5000
    (tmp_path / "metrics.jsonl").write_bytes(content + b"more")
    known = {"metrics.jsonl": (len(content), zlib.crc32(content[-KNOWN_END:]))}
    (seen,) = ask(here, Read(looks=[AttemptRead(directory=os.fspath(tmp_path), growing=known)], names=())).seen
    assert seen.grown == {"metrics.jsonl": Grown(content=b"more", at=len(content), size=len(content) + 4)}


def test_the_logs_of_further_processes_come_with_the_end(here: Connection, tmp_path: Path) -> None:
    """Of each its end, as of the workers of a TPU VM, and only once."""
    directory, long = os.fspath(tmp_path), b"x" * (1 << 17) + b"the end\n"
    (tmp_path / "output.1.log").write_bytes(b"of rank 1\n")
    (tmp_path / "output.10.log").write_bytes(long)
    (tmp_path / "output.x.log").write_bytes(b"no rank\n")
    (seen,) = ask(here, Read(looks=[AttemptRead(directory=directory)], names=("exit.json",))).seen
    assert seen.files == {}
    (tmp_path / "exit.json").write_text("{}\n")
    (seen,) = ask(here, Read(looks=[AttemptRead(directory=directory)], names=("exit.json",))).seen
    ends = {"output.1.log": b"of rank 1\n", "output.10.log": long[-(64 << 10) :]}
    assert seen.files == {"exit.json": b"{}\n", **ends}
    look = AttemptRead(directory=directory, have=seen.stamps)
    assert ask(here, Read(looks=[look], names=("exit.json",))).seen[0].files == {}


def test_what_is_in_the_place_of_a_file(here: Connection, tmp_path: Path) -> None:
    (tmp_path / "exit.json").mkdir()
    os.mkfifo(tmp_path / "output.log")
    (tmp_path / "result.json").symlink_to("result.json")
    (tmp_path / "metrics.jsonl").mkdir()
    growing = {"output.log": (0, 0), "metrics.jsonl": (7, 1), "exit.json/log.csv": (0, 0)}
    looks = [AttemptRead(directory=os.fspath(path), growing=growing) for path in (tmp_path, tmp_path / "none")]
    seen, missing = ask(here, Read(looks=looks, names=("exit.json", "result.json"))).seen
    assert (seen.files, seen.grown, seen.error) == ({}, {}, "")
    assert missing == AttemptFiles(exists=False, is_alive=False), "nothing new is known of its log"


def test_an_exit_status_that_could_not_be_written(here: Connection, tmp_path: Path) -> None:
    """It is in the file of the wrapper, which has room; or the wrapper waits, and why is told."""

    def look() -> AttemptFiles:
        (seen,) = ask(here, Read(looks=[AttemptRead(directory=os.fspath(tmp_path))], names=("taken", "exit.json"))).seen
        return seen

    taken, kept = tmp_path / "taken", b'{"exit_code": 3}\n'
    taken.write_text("h1 23\n")
    with open(tmp_path / "alive", "w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert (look().unwritten, set(look().files)) == ("", {"taken"})
        (tmp_path / "exit.json").touch()
        assert look().unwritten == f"on {host.host_name()}"
    assert look().unwritten == "", "the wrapper is gone"
    taken.write_bytes(b"h1 23\n" + kept[:-1])
    assert look().files["exit.json"] == b""
    taken.write_bytes(b"h1 23\n" + kept)
    assert look().files["exit.json"] == kept
    (tmp_path / "exit.json").unlink()
    assert look().files["exit.json"] == kept
    (tmp_path / "exit.json").write_bytes(b"written\n")
    assert look().files["exit.json"] == b"written\n"


def test_the_liveness_lock_is_seen(here: Connection, tmp_path: Path) -> None:
    with open(tmp_path / "alive", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert ask(here, Read(looks=[AttemptRead(directory=os.fspath(tmp_path))], names=())).seen[0].is_alive is True
    assert ask(here, Read(looks=[AttemptRead(directory=os.fspath(tmp_path))], names=())).seen[0].is_alive is False


def test_the_end_of_a_file(here: Connection, tmp_path: Path) -> None:
    (tmp_path / "err").write_bytes(b"0123456789")
    tail, none = ask(
        here, Tail(path=os.fspath(tmp_path / "err"), most_bytes=3), Tail(path=os.fspath(tmp_path / "none"))
    )
    assert (tail, none) == (TailRead(content=b"789"), TailRead(content=None))


def stored(source: Path, target: Path, content: bytes) -> Store:
    source.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return Store(path=os.fspath(target), source=os.fspath(source), size=len(content), sha256=digest)


def test_uploads(here: Connection, tmp_path: Path) -> None:
    first = stored(tmp_path / "a'b", tmp_path / "code" / "a.tar", os.urandom(3 << 20))
    second = stored(tmp_path / "$c", tmp_path / "code" / "b.tar", os.urandom(1 << 20))
    wrong = Store(path=f"{second.path}.bad", source=second.source, size=second.size, sha256=first.sha256)
    answers = ask(here, first, wrong, second, Has(paths=[first.path, wrong.path, second.path]), lane=Lane.TRANSFER)
    assert answers[0] == Stored()
    assert answers[1] == Failed(error=f"{wrong.path}: what arrived has another checksum than what was sent")
    assert answers[2:] == [Stored(), FileSizes(sizes=[first.size, None, second.size])]
    assert sorted(os.listdir(tmp_path / "code")) == ["a.tar", "b.tar"]
    assert (tmp_path / "code" / "a.tar").read_bytes() == (tmp_path / "a'b").read_bytes()
    assert ask(here, first, lane=Lane.TRANSFER) == Stored(existed=True)


def test_an_upload_that_breaks_off_leaves_nothing(here: Connection, tmp_path: Path) -> None:
    upload = stored(tmp_path / "a", tmp_path / "code" / "a.tar", os.urandom(1 << 20))
    (tmp_path / "a").write_bytes(b"shorter now")
    old = tmp_path / "code" / "a.tar.other-host.1.part"
    old.parent.mkdir()
    old.touch()
    os.utime(old, (time.time() - 7 * 3600,) * 2)
    answer = ask(here, upload, lane=Lane.TRANSFER)
    assert isinstance(answer, Failed)
    assert "broke off" in answer.error
    assert os.listdir(tmp_path / "code") == []


def test_a_request_that_breaks_off_does_nothing(tmp_path: Path) -> None:
    """Whatever arrived of it: the operations are known when all of it has."""
    write = Write(path=os.fspath(tmp_path / "file"), content=os.urandom(4096))
    request = Exchange([write], 60).request
    loader = agent_words(sys.executable)
    for length in (10, len(request) // 2, len(request) - 1):
        done = subprocess.run(loader, input=request[:length], capture_output=True, check=False)
        assert done.returncode == 1
        assert done.stdout == f"{BEGUN}\n".encode()
    assert os.listdir(tmp_path) == []
    assert subprocess.run(loader, input=request, capture_output=True, check=False).returncode == 0
    assert os.listdir(tmp_path) == ["file"]


def test_directories_that_nothing_needs(here: Connection, tmp_path: Path) -> None:
    tree = tmp_path / "work/id/a.1"
    tree.mkdir(parents=True)
    (tree / "file").write_bytes(b"x" * 5000)
    directory = os.fspath(tree.parent)
    listed = ask(here, Trees(directory=directory))
    assert isinstance(listed, TreeList)
    assert [one.name for one in listed.trees] == ["a.1"]
    assert listed.trees[0].bytes >= 5000
    assert ask(here, Trees(directory=f"{tmp_path}/none")).trees == []
    assert "is no name" in ask(here, Remove(directory=directory, names=["../a.1"])).error
    assert ask(here, Remove(directory=directory, names=["a.1", "gone"])) == Removed(failed=[])
    assert not tree.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="root is needed to make what is another user's")
@pytest.mark.parametrize("link", ["work", "work/id"])
def test_another_users_link_leads_to_nothing_that_is_removed(here: Connection, tmp_path: Path, link: str) -> None:
    """Whoever comes first makes what users share, and could have it lead to another one's home."""
    home = tmp_path / "home"
    (home / "id" / "thesis").mkdir(parents=True)
    place = tmp_path / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(home if link == "work" else home / "id")
    os.chown(place, 65534, 65534, follow_symlinks=False)
    directory = os.fspath(tmp_path / "work" / "id")
    assert f"{place} is a link of another user" in ask(here, Trees(directory=directory)).error
    assert f"{place} is a link of another user" in ask(here, Remove(directory=directory, names=["thesis"])).error
    assert (home / "id" / "thesis").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="root is needed to make what is another user's")
def test_trees_of_other_users_are_theirs(here: Connection, tmp_path: Path) -> None:
    (tmp_path / "b.1").mkdir()
    os.chown(tmp_path / "b.1", 65534, 65534)
    assert ask(here, Trees(directory=os.fspath(tmp_path))).trees == []


def test_a_call_whose_dispatcher_is_killed_as_it_begins_is_carried_out(tmp_path: Path) -> None:
    """It may be a submission: the next dispatcher finds it."""
    exchange = Exchange([Write(path=os.fspath(tmp_path / "file"), content=b"x")], 30)
    reader, writer = os.pipe()
    os.close(reader)
    subprocess.run(
        agent_words(sys.executable), input=exchange.request, stdout=writer, stderr=subprocess.DEVNULL, check=False
    )
    os.close(writer)
    assert (tmp_path / "file").read_bytes() == b"x"
