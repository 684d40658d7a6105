"""The arguments of qsub: those that the outlet sets, and those of the configuration (`pbsbatch_args`). Pure."""

from __future__ import annotations

import getopt
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from dispatcher.errors import ConfigError
from dispatcher.hosts.types import PbsHost

# Of OpenPBS 23.06: a letter with a colon takes a value.
OPTIONS: Final = "a:A:c:C:e:fGhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:Xz"
# PBS takes what stands before the first colon of a path for a host's name, and refuses other characters.
_OUTPUT_PATH: Final = re.compile(r"[\x20-\x39\x3b-\x7e]+")

# What the outlet needs to be as it is, and why.
_CONTROLLED: Final = {
    "N": "the name by which the job is found again",
    "e": "the file that the error of a failed start is read from",
    "o": "the file that the error of a failed start is read from",
    "j": "the file that the error of a failed start is read from",
    "r": "-r n: an attempt runs once",
    "S": "the script is bash",
    "J": "each attempt is a job of its own",
    "C": "the script has no directives",
    "I": "an interactive job would never return",
    "f": "qsub must return at once",
    "X": "it belongs to interactive jobs",
    "G": "it belongs to interactive jobs",
    "z": "the job's id is read from what qsub prints",
    "u": "jobs are searched under the user that submits them",
}
_CONTROLLED_ATTRIBUTES: Final = {"umask": "-W umask=0022", "block": "qsub must return at once"}
# Old ways to ask for what `select` asks for: PBS refuses both at once.
_OF_SELECT: Final = ("select", "place", "nodes", "ncpus", "ngpus", "mem", "vmem", "nodect", "mpiprocs", "ompthreads")


def arguments(host: PbsHost, name: str, output: str, resources: Sequence[str]) -> list[str]:
    """The arguments of qsub without the script; raises ConfigError for a `pbsbatch_args` that contradicts them."""
    options = ["-N", name, "-r", "n", "-W", "umask=0022", "-S", "/bin/bash", "-j", "oe", "-o", output_path(output)]
    if host.queues:
        options += ["-q", host.queues[0]]
    if host.project:
        options += ["-P", host.project]
    if host.account:
        options += ["-A", host.account]
    options += resources
    check(host, options)
    return [*options, *host.pbsbatch_args]


def output_path(path: str) -> str:
    """Where PBS writes what the script prints; nowhere if PBS cannot take the path."""
    return path if _OUTPUT_PATH.fullmatch(path) else "/dev/null"


def check(host: PbsHost, options: Sequence[str]) -> None:
    """Raise ConfigError when `pbsbatch_args` is no list of options, or contradicts one of `options`."""
    where = f"hosts.{host.name}.pbsbatch_args"
    set_here = dict(getopt.getopt(list(options), OPTIONS)[0])
    try:
        added, rest = getopt.getopt(list(host.pbsbatch_args), OPTIONS)
    except getopt.GetoptError as error:
        raise ConfigError(f"{where}: {error.msg}: qsub knows {_known()}") from None
    if rest:
        raise ConfigError(f"{where}: {rest[0]!r} is no option of qsub: an option and its value are two list members")
    for option, value in added:
        for word, reason in _contradictions(option, value, set_here, options):
            raise ConfigError(f"{where}: {word} contradicts what the dispatcher sets ({reason}): remove it")


def _contradictions(
    option: str, value: str, set_here: dict[str, str], options: Sequence[str]
) -> Iterator[tuple[str, str]]:
    letter = option[1:]
    if letter in _CONTROLLED:
        ours = f"{option} {set_here[option]}: " if option in set_here else ""
        yield f"{option} {value}".strip(), ours + _CONTROLLED[letter]
    elif letter == "W":
        for name in (part.partition("=")[0].strip() for part in value.split(",")):
            if name in _CONTROLLED_ATTRIBUTES:
                yield f"-W {value}", _CONTROLLED_ATTRIBUTES[name]
    elif letter == "l":
        ours_of_l = [text for flag, text in itertools.pairwise(options) if flag == "-l"]
        for name in (part.partition("=")[0].strip() for part in value.split(",")):
            yield from ((f"-l {value}", f"-l {text}") for text in ours_of_l if _is_same_resource(name, text))
    elif option in set_here and set_here[option] != value:
        yield f"{option} {value}", f"{option} {set_here[option]}"


def _is_same_resource(name: str, ours: str) -> bool:
    our_name = ours.partition("=")[0]
    if our_name == "place":
        return name == "place"
    return name == our_name or (our_name == "select" and name in _OF_SELECT and name != "place")


def _known() -> str:
    return ", ".join(f"-{letter}" for letter in OPTIONS if letter != ":")
