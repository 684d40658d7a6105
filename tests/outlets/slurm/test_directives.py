"""The `#SBATCH` lines: what is generated, what may be added, and how sbatch reads them."""

from __future__ import annotations

from typing import Any

import pytest
from beds.slurm import SlurmBed
from hostile_words import HOSTILE_WORDS

from dispatcher.errors import ConfigError
from dispatcher.hosts.types import Hosts, Partition, SlurmHost, SlurmOptions
from dispatcher.outlets.base import Request
from dispatcher.outlets.batch.scheduler import Submission
from dispatcher.outlets.slurm.directives import Job, directive, directives, file_pattern, read_arguments
from dispatcher.outlets.slurm.resources import host_for
from dispatcher.outlets.slurm.scheduler import SlurmScheduler
from dispatcher.workspace import Layout

JOB = Job(name="d-1", chdir="/data", output="/data/0.log", grace_s=30)


def lines(request: Request | None = None, job: Job = JOB, **keys: Any) -> list[str]:
    host = SlurmHost(name="hpc", cluster="hpc", **{"slot_type": "cpu", **keys})
    asked = request or Request(gpus=0)
    made = directives(host_for(host, asked), Hosts(), asked, job)
    assert all(line.startswith("#SBATCH ") for line in made)
    return [line.removeprefix("#SBATCH ") for line in made]


def changed(**fields: Any) -> Job:
    from msgspec.structs import replace

    return replace(JOB, **fields)


def test_all_of_a_plain_job() -> None:
    assert lines() == [
        "--job-name=d-1",
        "--nodes=1",
        "--ntasks=1",
        "--signal=B:USR1@60",
        "--no-requeue",
        "--chdir=/data",
        "--output=/data/0.log",
        "--open-mode=append",
        "--export=ALL",
    ]


def test_what_a_host_configures() -> None:
    made = lines(account="lab", qos="long", wckey="project x", exclude=("n1", "n[3-5]"), sbatch_args=("--nice=5",))
    assert made[3:7] == ["--account=lab", "--qos=long", '"--wckey=project x"', "--exclude=n1,n[3-5]"]
    assert made[-1] == "--nice=5"


@pytest.mark.parametrize(
    ("limit_s", "attempts", "grace_s", "minutes", "signal_s"),
    [
        # Our own time limit, the signal's time (grace period and 30 s), and the minute that SLURM may be early.
        (3600, 1, 30, 62, 60),
        (1, 1, 2.5, 2, 33),
        (3600, 3, 30, 182, 60),
        (3600, 1, 600, 72, 630),
        (3600, 1, 1e6, 1154, 65535),
    ],
)
def test_time(limit_s: float, attempts: int, grace_s: float, minutes: int, signal_s: int) -> None:
    made = lines(job=changed(time_limit_s=limit_s, attempts=attempts, grace_s=grace_s))
    assert f"--time={minutes}" in made
    assert f"--signal=B:USR1@{signal_s}" in made
    assert minutes * 60 - signal_s - 60 >= attempts * limit_s


def test_arrays() -> None:
    assert "--array=0-199" in lines(job=changed(array_size=200))


@pytest.mark.parametrize(
    ("words", "generated", "instead"),
    [
        (("--gpus=2",), "--gpus", "`gpus` of the entry"),
        (("--gres=gpu:2",), "--gres", ""),
        (("--gres", "gpu:2"), "--gres", ""),
        (("--gres gpu:2",), "--gres", ""),
        (("--gres=nvme:1,gpu:2",), "--gres", ""),
        (("-p low",), "--partition", "`partitions` and `cpu_partitions`"),
        (("-plow",), "--partition", ""),
        (("-p", "low"), "--partition", ""),
        (("--part=low",), "--partition", ""),
        (("--partition low",), "--partition", ""),
        (("-Hplow",), "--partition", ""),
        (("-N2",), "--nodes=1", "`resources` of the entry"),
        (("-n", "2"), "--ntasks=1", ""),
        (("--ntasks-per-node=2",), "--ntasks-per-node", ""),
        (("-c=2",), "--cpus-per-task", ""),
        (("-a1-3",), "--array", ""),
        (("--arr=1-3",), "--array", ""),
        (("-t 60",), "--time", "`time_limit` of the entry or method"),
        (("--requeue",), "--no-requeue", ""),
        (("--signal=TERM@5",), "--signal=B:USR1@60", ""),
        (("-J", "mine"), "--job-name=d-1", ""),
        (("-o/dev/null",), "--output=/data/0.log", ""),
        (("-D/tmp",), "--chdir=/data", ""),
        (("--export=NONE",), "--export=ALL", "`env` of the host"),
        (("-Mother",), "--clusters", "`clusters` of the host"),
        (("-W",), "--wait", ""),
        (("--wrap=x",), "--wrap", ""),
        (("--parsable",), "--parsable", ""),
    ],
)
def test_arguments_that_contradict(words: tuple[str, ...], generated: str, instead: str) -> None:
    with pytest.raises(ConfigError) as raised:
        lines(sbatch_args=words)
    message = str(raised.value)
    assert "hosts: hpc" in message
    use = f": use {instead}" if instead else ""
    is_generated = f"contradicts {generated}, which is generated{use}" in message
    assert is_generated != (f"is not taken, as the dispatcher sets {generated} itself{use}" in message)


def test_all_contradictions_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        lines(sbatch_args=("--requeue", "--no-requeue", "-plow", "--nice=5"))
    assert str(raised.value).splitlines() == [
        "hosts: hpc: 3 problems",
        "  sbatch_args: --requeue contradicts --no-requeue, which is generated",
        "  sbatch_args: --no-requeue is generated already",
        "  sbatch_args: --partition=low is not taken, as the dispatcher sets --partition itself: use `partitions` and "
        "`cpu_partitions`",
    ]


@pytest.mark.parametrize(
    ("word", "host", "key"),
    [
        ("-A lab", {"account": "other"}, "account"),
        ("-x n1", {"exclude": ("n2",)}, "exclude"),
        ("--qos=a", {"qos": "b"}, "qos"),
    ],
)
def test_what_the_host_may_set_contradicts_where_it_does(word: str, host: dict[str, Any], key: str) -> None:
    """So one entry can have another account than the others, where the host has none."""
    assert lines(sbatch_args=(word,))[-1].startswith(f"--{key}=")
    with pytest.raises(ConfigError, match=f"contradicts --{key}=.*, which is generated: use `{key}`"):
        lines(sbatch_args=(word,), **host)


def test_what_contradicts_only_where_it_is_generated() -> None:
    assert lines(sbatch_args=("--mem-per-cpu=2G", "-C", "ib"))[-2:] == ["--mem-per-cpu=2G", "--constraint=ib"]
    with pytest.raises(ConfigError, match=r"--mem-per-cpu=2G contradicts --mem=64G.*use `mem`"):
        lines(mem="64G", sbatch_args=("--mem-per-cpu=2G",))
    with pytest.raises(ConfigError, match=r"--constraint=x contradicts --constraint=ib"):
        lines(partitions=(Partition("a", constraint="ib"),), sbatch_args=("-Cx",))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--exclusive", "--nice=5"), ["--exclusive", "--nice=5"]),
        (("--comment", "two words"), ['"--comment=two words"']),
        (("--mail-type=END", "--mail-user", "a@b.c"), ["--mail-type=END", "--mail-user=a@b.c"]),
        (("-HLmatlab:2",), ["--hold", "--licenses=matlab:2"]),
        (("--time-min=10",), ["--time-min=10"]),
        (("-w n1",), ["--nodelist=n1"]),
        (("--reservation=r",), ["--reservation=r"]),
    ],
)
def test_arguments_that_are_added(words: tuple[str, ...], expected: list[str]) -> None:
    assert lines(sbatch_args=words)[-len(expected) :] == expected


def test_other_resources_are_added_to_the_gpus() -> None:
    """sbatch would take the last of several --gres."""
    made = lines(
        Request(gpus=2), slot_type="cuda", tres_supported=False, sbatch_args=("--gres=nvme:1", "--gres=tmp:5G")
    )
    assert [line for line in made if "gres" in line] == ["--gres=gpu:2,nvme:1,tmp:5G"]
    made = lines(Request(gpus=2), slot_type="cuda", sbatch_args=("--gres=nvme:1",))
    assert [line for line in made if "gres" in line] == ["--gres=nvme:1"]


@pytest.mark.parametrize("words", [("low",), ("--nice=5", "5"), ("-",), ("-Z",), ("--",)])
def test_words_that_are_no_options(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="sbatch_args"):
        list(read_arguments(words))


@pytest.mark.parametrize("value", ["a\nb", "a\tb", "\x7f"])
def test_what_no_line_can_hold(value: str) -> None:
    with pytest.raises(ConfigError, match="control character"):
        directive("comment", value)


def test_file_names() -> None:
    assert file_pattern("/a/100%/it's") == "/a/100%%/it's"
    with pytest.raises(ConfigError, match="backslash"):
        file_pattern("/a\\b")


def test_sbatch_reads_what_was_meant(slurm: SlurmBed) -> None:
    """Every word that a shell would change, as one comment of a job."""
    words = [word for word in HOSTILE_WORDS if word and word.isprintable()]
    assert len(words) > 12
    for word in words:
        job = slurm.submit(f"#!/bin/sh\n{directive('comment', f'[{word}]')}\n", "--hold")
        shown = slurm.run("squeue", "-h", "-j", job, "-O", "Comment:100").stdout
        assert shown.rstrip() == f"[{word}]"


def scheduler(**keys: Any) -> SlurmScheduler:
    return SlurmScheduler(SlurmHost(name="hpc", cluster="hpc", **keys), Hosts(), Layout("/data/lab"), 30.0)


def test_options_of_a_job_that_contradict() -> None:
    """It is not claimed for the host, and one message names all of them."""
    request = Request(1, slurm=SlurmOptions(sbatch_args=("--requeue", "--mem-per-cpu=1G", "--nice=5", "-plow")))
    assert scheduler(mem="64G").refuses(request).split("; ") == [
        "sbatch_args: --requeue contradicts --no-requeue, which is generated",
        "sbatch_args: --mem-per-cpu=1G contradicts --mem=64G, which is generated: use `mem`",
        "sbatch_args: --partition=low is not taken, as the dispatcher sets --partition itself: use `partitions` and "
        "`cpu_partitions`",
    ]
    assert "no option -Z" in scheduler().refuses(Request(1, slurm=SlurmOptions(sbatch_args=("-Z",))))
    assert scheduler().refuses(Request(1, slurm=SlurmOptions(sbatch_args=("--nice=5",)))) == ""


def test_arguments_of_a_partition_are_checked_at_the_start() -> None:
    with pytest.raises(ConfigError, match="--requeue contradicts --no-requeue"):
        scheduler(partitions=(Partition("a", sbatch_args=("--requeue",)),))


@pytest.mark.parametrize(
    ("keys", "projects", "expected"),
    [
        ({"wckey": "k"}, (), "--wckey=k"),
        ({"wckey": "k", "job_project_source": "user"}, (("user", "ada"),), "--wckey=ada"),
        ({"wckey": "k", "job_project_source": "label"}, (), "--wckey=k"),
        ({"job_project_source": "workspace"}, (), "--wckey=lab"),
    ],
)
def test_the_wckey(keys: dict[str, Any], projects: tuple[tuple[str, str], ...], expected: str) -> None:
    request = Request(0, projects=projects)
    layout = Layout("/home/w")
    submission = Submission(name="d-1", bundles=(), directories=("/a",), layout=layout, request=request, groups=((0,),))
    (script,) = scheduler(**keys).scripts(submission).values()
    assert f"#SBATCH {expected}\n" in script.decode()


def test_faults_of_the_host_and_of_its_partitions_have_their_place() -> None:
    partitions = (Partition("a", sbatch_args=("--requeue",)), Partition("b", sbatch_args=("word",)))
    host = SlurmHost(name="hpc", cluster="hpc", sbatch_args=("--gres=gpu:1",), partitions=partitions)
    with pytest.raises(ConfigError) as raised:
        SlurmScheduler(host, Hosts(), Layout("/w"), 1.0)
    assert str(raised.value).splitlines() == [
        "hosts: hpc: 3 problems",
        "  sbatch_args: --gres=gpu:1 is not taken, as the dispatcher sets --gres itself",
        "  partition a: sbatch_args: --requeue contradicts --no-requeue, which is generated",
        "  partition b: sbatch_args: 'word' is no option: write it as --NAME=VALUE",
    ]


def test_what_an_entry_adds_is_refused_before_it_is_claimed() -> None:
    """With all that the host says of such jobs, and not when its script is written."""
    host = SlurmHost(name="hpc", cluster="hpc", exclude=("n4",), account="lab", qos="long", wckey="w")
    words = ("--exclude=n3", "--account=x", "--qos=y", "--wckey=z", "--nice=1")
    why = SlurmScheduler(host, Hosts(), Layout("/w"), 1.0).refuses(Request(1, slurm=SlurmOptions(sbatch_args=words)))
    assert [fault.split(" contradicts ")[0] for fault in why.split("; ")] == [
        f"sbatch_args: {word}" for word in words[:-1]
    ]
