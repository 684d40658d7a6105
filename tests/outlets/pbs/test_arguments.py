"""The arguments of qsub, and what `pbsbatch_args` must not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.errors import ConfigError
from dispatcher.hosts.types import PbsHost, PbsQueue
from dispatcher.outlets.pbs.arguments import arguments, output_path, read

RESOURCES = ["-l", "select=1:ncpus=4:ngpus=4", "-l", "place=scatter", "-l", "walltime=01:00:00"]


GPU = (PbsQueue("gpu"), PbsQueue("cpu"))


def made(*batch_args: str, project: str | None = None, **words: Any) -> list[str]:
    host = PbsHost(name="hpc", cluster="hpc", pbsbatch_args=batch_args, **words)
    return arguments(host, "d-0123", "/w/output.log", RESOURCES, project, read(host))


def test_all_of_them() -> None:
    found = made("-l", "software=matlab", "-m", "abe", queues=GPU, project="p; rm", account="a b")
    assert found == [
        *("-N", "d-0123", "-r", "n", "-W", "umask=0022", "-S", "/bin/bash", "-j", "oe", "-o", "/w/output.log"),
        *("-P", "p; rm", "-A", "a b"),
        *RESOURCES,
        *("-l", "software=matlab", "-m", "abe"),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("-l", "nodes=2:ppn=4"),
        ("-l", "ncpus=4"),
        ("-l", "software=x,ngpus=1"),
        ("-l", "place=excl"),
        ("-l", "walltime=00:10:00"),
        ("-r", "y"),
        ("-ry",),
        ("-N", "mine"),
        ("-J", "1-10"),
        ("-q", "cpu"),
        ("-P", "other"),
        ("-A", "other"),
        ("-o", "/tmp/x"),
        ("-e", "/tmp/x"),
        ("-j", "n"),
        ("-W", "umask=077"),
        ("-W", "depend=afterok:1,block=true"),
        ("-I",),
        ("-VI",),
        ("-z",),
        ("-S", "/bin/csh"),
        ("-C", "#X"),
        ("-u", "somebody"),
    ],
)
def test_a_contradiction_names_both(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        made(*words, queues=GPU, project="p", account="a")
    message = str(caught.value)
    assert message.startswith("pbsbatch_args for hpc: 1 problem")
    assert "contradicts what the dispatcher sets (" in message
    assert words[-1].removeprefix("-l").removeprefix("-r").removeprefix("-V") in message


def test_what_contradicts_is_named_with_its_value() -> None:
    with pytest.raises(ConfigError, match=r"-l walltime=1 contradicts .*\(-l walltime=01:00:00\)"):
        made("-l", "walltime=1")
    with pytest.raises(ConfigError, match=r"-q cpu contradicts .*\(-q gpu or cpu\)"):
        made("-q", "cpu", queues=GPU)
    with pytest.raises(ConfigError, match=r"-r y contradicts .*\(-r n: an attempt runs once\)"):
        made("-r", "y")


def test_all_contradictions_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        made("-r", "y", "-l", "walltime=1,place=pack", "-N", "mine")
    assert [line.split(" contradicts ")[0] for line in str(caught.value).splitlines()] == [
        "pbsbatch_args for hpc: 4 problems",
        "  -r y",
        "  -l walltime=1,place=pack",
        "  -l walltime=1,place=pack",
        "  -N mine",
    ]


@pytest.mark.parametrize(
    ("words", "of_chunks"),
    [
        (("-l", "select=4:ngpus=8:filesystems=home:mem=20gb"), {"ngpus": "8", "filesystems": "home", "mem": "20gb"}),
        (("-lselect=ncpus=16",), {"ncpus": "16"}),
        (("-l", "select=1:a=x+2:a=x:b=y"), {"a": "x", "b": "y"}),
        (("-l", 'select=2:tags="a,b:c+d"'), {"tags": '"a,b:c+d"'}),
        (("-l", "select=2:a=1", "-l", "select=3:b=2"), {"a": "1", "b": "2"}),
    ],
)
def test_resources_of_chunks(words: tuple[str, ...], of_chunks: dict[str, str]) -> None:
    """How many chunks there are is for the outlet to say."""
    found = read(PbsHost(name="hpc", cluster="hpc", pbsbatch_args=(*words, "-m", "n")))
    assert (found.of_chunks, found.options) == (of_chunks, (("-m", "n"),))


@pytest.mark.parametrize(
    ("select", "why"),
    [
        ("select", "-l select asks for nothing: write select=1:NAME=VALUE, or remove it"),
        ("select=", "-l select= asks for nothing: write select=1:NAME=VALUE, or remove it"),
        ("select=2:bigmem", "-l select=2:bigmem: 'bigmem' is no resource of a chunk: write NAME=VALUE"),
        ("select=1:a=x:mem=4gb", "-l select=1:a=x:mem=4gb: a is y in another -l select: remove one of the two"),
        ("select=mem=", "-l select=mem=: 'mem=' is no resource of a chunk: write NAME=VALUE"),
        ("select=two:a=b", "-l select=two:a=b: 'two' is no resource of a chunk: write NAME=VALUE"),
    ],
)
def test_a_select_that_is_none(select: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        made("-l", "select=1:a=y", "-l", select)
    assert str(raised.value).splitlines() == ["pbsbatch_args for hpc: 1 problem", f"  {why}"]


def test_other_resources_beside_those_of_chunks() -> None:
    found = read(PbsHost(name="hpc", cluster="hpc", pbsbatch_args=("-l", "select=1:a=x,software=matlab")))
    assert (found.of_chunks, found.options) == ({"a": "x"}, (("-l", "software=matlab"),))


def test_chunks_that_differ() -> None:
    """What else is wrong is told with it."""
    with pytest.raises(
        ConfigError, match=r"(?s)select=1:a=x\+1:a=y: chunks differ in a \(x and y\).*-N mine contradicts"
    ):
        made("-l", "select=1:a=x+1:a=y", "-N", "mine")


@pytest.mark.parametrize(
    "words",
    [("-V",), ("-v", "A=1"), ("-q", "x"), ("-P", "x"), ("-W", "group_list=x"), ("-l", "filesystems=home"), ("-h",)],
)
def test_what_may_be_added(words: tuple[str, ...]) -> None:
    assert made(*words)[-len(words) :] == list(words)


def test_what_is_no_option() -> None:
    with pytest.raises(ConfigError, match=r"pbsbatch_args for hpc: option -Y not recognized: qsub knows -a, -A, -c"):
        made("-Y")
    with pytest.raises(ConfigError, match=r"'software=x' is no option of qsub"):
        made("software=x")
    with pytest.raises(ConfigError, match="option -l requires argument"):
        made("-l")


def test_a_path_that_pbs_cannot_take() -> None:
    """The first colon ends a host's name, and other characters are refused."""
    assert output_path("/w/a'; echo foo/output.log") == "/w/a'; echo foo/output.log"
    assert output_path("/w/a:b/output.log") == "/dev/null"
    assert output_path("/w/müll/output.log") == "/dev/null"
