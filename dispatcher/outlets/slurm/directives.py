"""The `#SBATCH` lines of a submission: what is generated, and what `sbatch_args` may add.

`sbatch_args` that contradict a generated option are an error that names both, in every spelling that sbatch reads:
`--gres=x`, `--gres x`, `-p low`, `-plow`, `--part=low`, or flags in one word (`-Hplow`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from dispatcher.errors import ConfigError
from dispatcher.hosts.types import Hosts, SlurmHost
from dispatcher.outlets.base import Request
from dispatcher.outlets.slurm.resources import Option, partition_options, resource_options

# SLURM sends the signal up to so much earlier than asked (man sbatch, --signal).
_SIGNAL_RESOLUTION_S: Final = 60
# From the signal to the end, besides the grace period: for starting up, and for writing the exit status.
MARGIN_S: Final = 30
# What SLURM takes for a signal's time.
_LONGEST_SIGNAL_S: Final = 65535
# SLURM refuses names and comments over this.
LONGEST_NAME: Final = 1024

# Long names of the short options of sbatch. Those in _FLAGS have no value, so more may follow in one word.
_SHORT: Final = {
    "a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "h": "help", "H": "hold",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters",
    "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "V": "version", "w": "nodelist",
    "W": "wait", "x": "exclude",
}  # fmt: skip
_FLAGS: Final = frozenset("hHOQsvVW")
# Options that are controlled, and where to say it instead; empty: nowhere.
_CONTROLLED: Final = {
    "job-name": "", "array": "", "output": "", "error": "", "input": "", "open-mode": "", "chdir": "",
    "export": "`env` of the host", "export-file": "`env` of the host",
    "time": "`time_limit` of the entry or method", "signal": "",
    "requeue": "", "no-requeue": "",
    "partition": "`partitions` and `cpu_partitions`",
    "account": "`account`", "qos": "`qos`", "exclude": "`exclude`", "wckey": "`wckey`",
    "nodes": "`resources` of the entry", "ntasks": "`resources` of the entry",
    "tasks-per-node": "`resources` of the entry", "ntasks-per-node": "`resources` of the entry",
    "cpus-per-task": "`resources: {cpus}` of the entry",
    "gpus": "`gpus` of the entry", "gpus-per-task": "`slots_per_node`", "gpus-per-node": "`slots_per_node`",
    "gpus-per-socket": "`gpus` of the entry", "ntasks-per-gpu": "`gpus` of the entry",
    "mem": "`mem`",
    "clusters": "`clusters` of the host",
    "wrap": "", "parsable": "", "test-only": "", "wait": "", "uid": "", "gid": "", "help": "", "usage": "",
    "version": "",
}  # fmt: skip
# What is generated in every submission, by its opposite.
_OPPOSITES: Final = {"requeue": "no-requeue"}
# What contradicts an option only where that one is generated.
_EXCLUDES: Final = {"mem-per-cpu": "mem", "mem-per-gpu": "mem", "constraint": "constraint"}
# Those of a key of the host, which an entry may set where the host does not.
_IF_GENERATED: Final = frozenset(["account", "qos", "exclude", "wckey"])
# Options of sbatch that begin like a controlled one, but are others.
_OTHERS: Final = frozenset(["mem-per-cpu", "mem-per-gpu", "mem-bind", "time-min", "wait-all-nodes"])
# What the site's modules may set of these counts for jobs for which nothing else is configured: sbatch would take it
# before what its script says.
_OF_THE_SITE: Final = ("account", "partition", "qos", "wckey", "reservation")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./~^&|()*\[\]{}!-]+")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a submission is beyond its request. `output` is a pattern of sbatch.

    `time_limit_s` is that of one of the `attempts` that one job runs in turn, `grace_s` what an attempt has from TERM
    to KILL. `array_size` 1: no array. `wckey` None: the host's.
    """

    name: str
    chdir: str
    output: str
    attempts: int = 1
    array_size: int = 1
    time_limit_s: float | None = None
    grace_s: float = 30.0
    wckey: str | None = None


def directives(host: SlurmHost, hosts: Hosts, request: Request, job: Job) -> list[str]:
    """The `#SBATCH` lines of a submission, in order; ConfigError for `sbatch_args` that contradict one of them.

    `host` is as it is for the request (resources.host_for).
    """
    signal_s = _signal_time_s(job.grace_s)
    limit_s = job.attempts * job.time_limit_s + signal_s if job.time_limit_s else None
    generated: list[Option] = [
        ("job-name", job.name),
        *([("array", f"0-{job.array_size - 1}")] if job.array_size > 1 else []),
        *partition_options(host),
        *resource_options(host, hosts, request),
        *accounting(host, job.wckey),
        *([("time", str(_minutes(limit_s)))] if limit_s else []),
        ("signal", f"B:USR1@{signal_s}"),
        ("no-requeue", ""),
        ("chdir", job.chdir),
        ("output", job.output),
        ("open-mode", "append"),
        ("export", "ALL"),
    ]
    added = list(read_arguments(host.sbatch_args))
    _check_arguments(host, added, generated)
    return [directive(*option) for option in _with_gres([*generated, *added])]


def own_variables(host: SlurmHost, wckey: str | None) -> dict[str, None]:
    """The variables of the site that must not count for a job, because the configuration says what they say.

    `host` is as it is for the job's request.
    """
    configured = [*accounting(host, wckey), *partition_options(host), *read_arguments(host.sbatch_args)]
    names = {name for name, _ in configured}
    return {f"SBATCH_{name.upper()}": None for name in _OF_THE_SITE if name in names}


def _signal_time_s(grace_s: float) -> int:
    """How long before the end of its time a job is told: an attempt that is stopped then can still end by itself."""
    return min(math.ceil(grace_s) + MARGIN_S, _LONGEST_SIGNAL_S)


def _check_arguments(host: SlurmHost, added: Iterable[Option], generated: Sequence[Option] = ()) -> None:
    """ConfigError for options of `sbatch_args` that contradict generated ones; names all of them."""
    faults = contradictions(added, generated)
    if faults:
        raise ConfigError.of(f"hosts: {host.name}", faults)


def check_configured(host: SlurmHost) -> None:
    """ConfigError for `sbatch_args` of the host and of its partitions that no job can have; names all of them."""
    faults = []
    for before, words in (
        ("", host.sbatch_args),
        *((f"partition {one.name}: ", one.sbatch_args) for one in host.partitions),
    ):
        try:
            found = contradictions(read_arguments(words), ())
        except ConfigError as error:
            found = [str(error)]
        faults += [f"{before}{fault}" for fault in found]
    if faults:
        raise ConfigError.of(f"hosts: {host.name}", faults)


def contradictions(added: Iterable[Option], generated: Sequence[Option]) -> list[str]:
    """Which options of `sbatch_args` contradict generated ones, and what to use instead."""
    made = dict(generated)
    faults = []
    for name, value in added:
        against = _contradicted(name, value, made)
        if against:
            where = _CONTROLLED.get(against, "")
            fault = _fault(directive(name, value).removeprefix("#SBATCH "), against, made)
            faults.append(f"sbatch_args: {fault}" + (f": use {where}" if where else ""))
    return faults


def _fault(given: str, against: str, made: Mapping[str, str]) -> str:
    if against in _OPPOSITES:
        return f"{given} contradicts --{_OPPOSITES[against]}, which is generated"
    if against not in made:
        return f"{given} is not taken, as the dispatcher sets --{against} itself"
    own = f"--{against}={made[against]}" if made[against] else f"--{against}"
    return f"{given} is generated already" if given == own else f"{given} contradicts {own}, which is generated"


def _contradicted(name: str, value: str, made: Mapping[str, str]) -> str:
    """The controlled option that this one is, or is short for; empty when it is neither."""
    if name in _EXCLUDES and _EXCLUDES[name] in made:
        return _EXCLUDES[name]
    if name == "gres":
        # Other resources than GPUs are added to those that are generated.
        return "gres" if any(part.partition(":")[0].startswith("gpu") for part in value.split(",")) else ""
    if name in _OTHERS or not name:
        return ""
    known = name if name in _CONTROLLED else next((one for one in (*_CONTROLLED, "gres") if one.startswith(name)), "")
    return "" if known in _IF_GENERATED and known not in made else known


def read_arguments(words: Sequence[str]) -> Iterator[Option]:
    """The options of `sbatch_args` by their long names; ConfigError for a word that is none.

    A word that does not begin with `-` is the value of the option before it, as on a command line.
    """
    options: list[Option] = []
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            if not options or options[-1][1]:
                raise ConfigError(f"sbatch_args: {word!r} is no option: write it as --NAME=VALUE")
            options[-1] = (options[-1][0], word)
        elif word.startswith("--"):
            name, value = re.fullmatch(r"--([^=\s]*)(?:=|\s+|$)(.*)", word, re.S).groups()  # type: ignore[union-attr]
            options.append((name, value))
        else:
            options += _short_options(word[1:])
    yield from options


def _short_options(letters: str) -> Iterator[Option]:
    for at, letter in enumerate(letters):
        if letter not in _SHORT:
            raise ConfigError(f"sbatch_args: -{letters}: sbatch has no option -{letter}")
        if letter not in _FLAGS:
            yield _SHORT[letter], letters[at + 1 :].lstrip(" =")
            return
        yield _SHORT[letter], ""


def directive(name: str, value: str) -> str:
    """One `#SBATCH` line, quoted as sbatch reads it, which differs from a shell; ConfigError for what no line can hold.

    sbatch ends an option at a blank and a line at `#`, takes off quotes of both kinds, and a backslash before any
    character, within quotes too.
    """
    word = f"--{name}={value}" if value else f"--{name}"
    if any(ord(character) < 32 or ord(character) == 127 for character in word):
        raise ConfigError(f"{word!r} cannot be an option of sbatch: it has a line break or a control character")
    if _PLAIN.fullmatch(word):
        return f"#SBATCH {word}"
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH "{escaped}"'


def file_pattern(path: str) -> str:
    """`path` as sbatch reads file names: `%` begins a replacement, and one backslash anywhere would end all of them."""
    if "\\" in path:
        raise ConfigError(f"{path!r} cannot be the output file of a job: SLURM gives a backslash in it a meaning")
    return path.replace("%", "%%")


def accounting(host: SlurmHost, wckey: str | None) -> list[Option]:
    """Whose the job is, and the nodes that it must not use."""
    pairs = (
        ("account", host.account),
        ("qos", host.qos),
        ("wckey", wckey or host.wckey),
        ("exclude", ",".join(host.exclude)),
    )
    return [(name, value) for name, value in pairs if value]


def _minutes(seconds: float) -> int:
    """SLURM counts in minutes and may send the signal a minute early: our own time limit comes first."""
    return math.ceil((seconds + _SIGNAL_RESOLUTION_S) / 60)


def _with_gres(options: Sequence[Option]) -> list[Option]:
    """The options with one --gres: of several, sbatch would take the last."""
    values = [value for name, value in options if name == "gres"]
    if len(values) < 2:
        return list(options)
    first = options.index(("gres", values[0]))
    merged = [option for option in options if option[0] != "gres"]
    return [*merged[:first], ("gres", ",".join(values)), *merged[first:]]
