"""The arguments of qsub: those that the outlet sets, and those of the configuration (`pbsbatch_args`). Pure."""

from __future__ import annotations

import getopt
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

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
    "r": "an attempt runs once",
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
_OF_SELECT: Final = ("nodes", "ncpus", "ngpus", "mem", "vmem", "nodect", "mpiprocs", "ompthreads")


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What `pbsbatch_args` add: options with their values, resources of each chunk by name, and what is wrong there."""

    options: tuple[tuple[str, str], ...] = ()
    of_chunks: Mapping[str, str] = {}
    fault: str = ""


def arguments(
    host: PbsHost, name: str, output: str, resources: Sequence[str], project: str | None, added: Added
) -> list[str]:
    """The arguments of qsub without the queue and the script; ConfigError for `added` ones that contradict them."""
    options = ["-N", name, "-r", "n", "-W", "umask=0022", "-S", "/bin/bash", "-j", "oe", "-o", output_path(output)]
    if project:
        options += ["-P", project]
    if host.account:
        options += ["-A", host.account]
    options += resources
    if faults := contradictions(host, options, added):
        raise ConfigError.of(_place(host), faults)
    return [*options, *(word for option in added.options for word in option if word)]


def output_path(path: str) -> str:
    """Where PBS writes what the script prints; nowhere if PBS cannot take the path."""
    return path if _OUTPUT_PATH.fullmatch(path) else "/dev/null"


def read(host: PbsHost) -> Added:
    """`pbsbatch_args` of the host; ConfigError when they are no list of options."""
    try:
        found, rest = getopt.getopt(list(host.pbsbatch_args), OPTIONS)
    except getopt.GetoptError as error:
        raise ConfigError(f"{_place(host)}: {error.msg}: qsub knows {_known()}") from None
    if rest:
        raise ConfigError(f"{_place(host)}: {rest[0]!r} is no option of qsub: an option and its value are two words")
    selects, options = [], []
    for option, value in found:
        parts = _split(value, ",") if option == "-l" else [value]
        selects += [part for part in parts if _is_select(option, part)]
        left = [part for part in parts if not _is_select(option, part)]
        options += [(option, ",".join(left))] if left else []
    try:
        return Added(options=tuple(options), of_chunks=_of_chunks(selects))
    except ValueError as error:
        return Added(options=tuple(options), fault=str(error))


def _is_select(option: str, value: str) -> bool:
    return option == "-l" and value.partition("=")[0].strip() == "select"


def _of_chunks(selects: Iterable[str]) -> dict[str, str]:
    """The resources of the chunks of `select=...`; how many chunks there are is for the outlet to say.

    ValueError for a part that is no resource, and where two chunks differ: all of the outlet's get the same.
    """
    found: dict[str, str] = {}
    for select in selects:
        before = dict(found)
        chunks = _split(select.partition("=")[2], "+")
        if not chunks:
            raise ValueError(f"-l {select} asks for nothing: write select=1:NAME=VALUE, or remove it")
        for chunk in chunks:
            count, *parts = _split(chunk, ":")
            for part in parts if count.strip().isdecimal() else [count, *parts]:
                name, equals, value = part.strip().partition("=")
                if not (name and equals and value):
                    raise ValueError(f"-l {select}: {part.strip()!r} is no resource of a chunk: write NAME=VALUE")
                if before.get(name, value) != value:
                    raise ValueError(
                        f"-l {select}: {name} is {before[name]} in another -l select: remove one of the two"
                    )
                if found.setdefault(name, value) != value:
                    raise ValueError(
                        f"-l {select}: chunks differ in {name} ({found[name]} and {value}); the dispatcher sets the "
                        "chunks, and each gets the same"
                    )
    return found


def _split(text: str, separator: str) -> list[str]:
    """The parts of a value of qsub, in which quotes protect a separator."""
    quoted = r"""\"[^"]*\"|'[^']*'"""
    return [part for part in re.findall(rf"(?:{quoted}|[^{re.escape(separator)}])+", text) if part]


def _place(host: PbsHost) -> str:
    return f"pbsbatch_args for {host.name}"


def contradictions(host: PbsHost, options: Sequence[str], added: Added) -> list[str]:
    """What of the added options contradicts one of `options`, and why it has to be as it is."""
    set_here = dict(getopt.getopt(list(options), OPTIONS)[0])
    if host.queues:
        set_here["-q"] = " or ".join(queue.name for queue in host.queues)
    return [
        *([added.fault] if added.fault else []),
        *(
            f"{word} contradicts what the dispatcher sets ({reason}): remove it"
            for option, value in added.options
            for word, reason in _contradictions(option, value, set_here, options)
        ),
    ]


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
        for name in (part.partition("=")[0].strip() for part in _split(value, ",")):
            yield from ((f"-l {value}", f"-l {text}") for text in ours_of_l if _is_same_resource(name, text))
    elif option in set_here and set_here[option] != value:
        yield f"{option} {value}", f"{option} {set_here[option]}"


def _is_same_resource(name: str, ours: str) -> bool:
    our_name = ours.partition("=")[0]
    if our_name == "place":
        return name == "place"
    return name == our_name or (our_name == "select" and name in _OF_SELECT)


def _known() -> str:
    return ", ".join(f"-{letter}" for letter in OPTIONS if letter != ":")
