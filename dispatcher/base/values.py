"""The values that manifests, sweep files and dispatcher.yaml have in common.

Each `parse_*` function takes the value in the file and returns the value that the code uses, or raises BadValueError,
which says what was expected. The caller knows the file, the entry and the key; it collects all faults and reports them
at once.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from dispatcher.base.lazy import pattern
from dispatcher.base.variables import SETTABLE
from dispatcher.errors import nearest

# The failure reasons in records; "exit" and "signal" mean any exit status and any signal.
FAILURE_REASONS: Final = ("exit", "signal", "out of memory", "time limit", "setup", "lost", "preempted", "gpu idle")

# What to do with a job whose attempt was lost or preempted.
_ON_END: Final = ("requeue", "fail")

RESOURCE_WORDS: Final = ("chip", "min_chips", "cpus", "memory", "nodes")
# What becomes of a job whose checkpoint the next outlet cannot see: it waits for an outlet that can, or starts anew.
_ON_MOVE: Final = ("stay", "restart")

_NAME = pattern(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
# What lists and filters read as something else, and what would break a line, is in no name.
_USER = pattern(r"\w[\w.\\@+$-]{0,199}")
_NUMBERED_REASON = pattern(r"(exit|signal) [0-9]{1,3}")
_ENV_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMORY = pattern(r"(?P<amount>[0-9]+(\.[0-9]+)?)\s?(?P<unit>[KMGT])(i?B)?", re.ASCII)
_LOWER_CASE = pattern(r"(?P<amount>[0-9]+(\.[0-9]+)?)\s?(?P<unit>[kmgt])(i?b)?", re.ASCII | re.IGNORECASE)
_MEMORY_KIB: Final = {"K": 1, "M": 2**10, "G": 2**20, "T": 2**30}
_CLOCK = pattern(r"(?:(?P<d>\d{1,4})-)?(?P<h>\d{1,4}):(?P<m>[0-5]?\d):(?P<s>[0-5]?\d)", re.ASCII)
_DAYS_CLOCK = pattern(r"(?P<d>\d{1,4})-(?P<h>\d{1,2})(?::(?P<m>[0-5]?\d))?", re.ASCII)
_UNITS = pattern(r"(?:\d{1,30}(?:\.\d{1,9})?\s*[dhms]\s*)+", re.ASCII)
_UNIT = pattern(r"(\d+(?:\.\d+)?)\s*([dhms])", re.ASCII)
_SECONDS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_LONGEST_S: Final = 3650 * 86400
# Of anything that is counted: no more than a person can mean.
MOST: Final = 10**9
# What 64 bits hold.
MOST_BITS: Final = 2**63 - 1
_MOST_MIB: Final = 2**30

_TIME_EXPECTED = "expected a time such as 90m, 8h, 1h30m, 01:30:00 or 1-12:00:00, or a number of seconds"
NAME_EXPECTED = (
    "expected 1 to 200 letters, digits, '.', '_' or '-', not beginning with '.' or '-' "
    "(it becomes a folder's name and is passed on command lines)"
)


NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Reader = Callable[[object], Any]


class BadValueError(ValueError):
    """A value that cannot be used for its key; the message says what was expected."""


def shown(value: object) -> str:
    """`value` as JSON, cut to 80 characters, for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def shown_at(key: str, value: object) -> str:
    """As `shown`, for the value of this key; of environment variables the names alone: a value may be a secret."""
    if key.rpartition(".")[2] != "env" or not isinstance(value, Mapping):
        return shown(value)
    text = ", ".join(f"{shown(name)}: ..." for name in value)
    return f"{{{text}}}" if len(text) <= 78 else f"{{{text[:74]}..."


def text_of(value: object) -> str:
    """`value` as one argument: text unchanged, anything else as JSON (true, 0.5, [1, 2], null)."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def number_of(value: object) -> float | None:
    """A number that a job has written; None for what is none, such as a text.

    JSON has neither NaN nor infinity. They are null in results and in progress, and text in lines of metrics, where
    infinities differ; whichever it is, here it is the number.
    """
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return math.nan if value is None else NOT_FINITE.get(value) if isinstance(value, str) else None


def identity(value: object) -> Hashable:
    """Equal for equal values: the one equality of values, for groups, choices and comparisons.

    false, 0, 0.0 and "0" are four values; a NaN equals a NaN, and the order of an object's keys does not count.
    """
    if value is None or isinstance(value, str):
        return value
    if type(value) in (bool, int, float):
        return (repr(value),)
    return (json.dumps(value, sort_keys=True, default=repr),)


def group_label(values: Iterable[object]) -> Callable[[object], str]:
    """What the groups of these values are called: as tables show them, and text that reads as another one in quotes."""
    distinct = {identity(value): value for value in values}
    texts = {key: "" if value is None else text_of(value) for key, value in distinct.items()}
    counts = Counter(texts.values())
    labels = {
        key: json.dumps(key, ensure_ascii=False) if isinstance(key, str) and counts[text] > 1 else text
        for key, text in texts.items()
    }
    return lambda value: labels[identity(value)]


def split_names(lists: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The names in lists with commas; what is known with its commas is one name."""
    found: dict[str, None] = {}
    for text in lists:
        parts = text.split(",")
        while parts:
            ends = range(len(parts), 0, -1)
            end = next((end for end in ends if ",".join(parts[:end]).strip() in known), 1)
            if name := ",".join(parts[:end]).strip():
                found[name] = None
            del parts[:end]
    return tuple(found)


def is_name(value: object) -> bool:
    """Whether `value` may be a job id or a method: see `parse_name`."""
    return type(value) is str and _NAME.fullmatch(value) is not None


def parse_name(value: object) -> str:
    """A job id or the name of a method: safe as a folder's name and as an argument."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise BadValueError(NAME_EXPECTED)


def parse_duration(value: object) -> float:
    """Seconds from `90m`, `8h`, `1h30m`, `01:30:00`, `1-12:00:00` (days first, as SLURM writes it) or a number.

    Text without a unit (`90`) and `01:30` are refused: schedulers disagree on their meaning.
    """
    seconds = _clock_seconds(value.strip()) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise BadValueError(_TIME_EXPECTED)
    if not math.isfinite(seconds):
        raise BadValueError(_TIME_EXPECTED)
    if seconds > _LONGEST_S:
        raise BadValueError(f"too long: {_TIME_EXPECTED}, at most ten years")
    if seconds <= 0:
        raise BadValueError(f"{_TIME_EXPECTED}, more than 0")
    return float(seconds)


def _clock_seconds(text: str) -> float | None:
    if text.startswith("-"):
        later = _clock_seconds(text[1:].lstrip("-"))
        return None if later is None else -later
    if _UNITS.fullmatch(text):
        return sum(float(number) * _SECONDS[unit] for number, unit in _UNIT.findall(text))
    clock = _CLOCK.fullmatch(text) or _DAYS_CLOCK.fullmatch(text)
    if clock is None:
        return None
    return float(sum(int(number or 0) * _SECONDS[unit] for unit, number in clock.groupdict().items()))


def parse_count(value: object) -> int:
    """A whole number, 0 or more."""
    if fault := _count_fault(value, 0):
        raise BadValueError(fault)
    assert type(value) is int
    return value


def _count_fault(value: object, least: int) -> str:
    """What is wrong with a whole number, `least` or more; empty when nothing is."""
    if type(value) is not int or value < least:
        return f"expected a whole number, {least} or more"
    return f"too large: expected a whole number, at most {MOST}" if value > MOST else ""


def parse_flag(value: object) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise BadValueError("expected true or false")
    return value


def parse_integer(value: object) -> int:
    """A whole number of at most 64 bits, which every other tool can read."""
    if type(value) is not int:
        raise BadValueError("expected a whole number")
    if abs(value) > MOST_BITS:
        raise BadValueError(f"expected a whole number from -{MOST_BITS} to {MOST_BITS}")
    return value


def parse_text(value: object) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadValueError("expected text, not empty and without NUL characters")
    return value


def is_user(value: object) -> bool:
    """Whether `value` may be the name of a user: see `parse_user`."""
    return type(value) is str and _USER.fullmatch(value) is not None


def parse_user(value: object) -> str:
    """The name of a user as systems have them, also of a domain: `ada`, `LAB\\ada`, `ada@lab.example`."""
    if isinstance(value, str) and is_user(value):
        return value
    raise BadValueError("expected the name of a user, such as ada")


def parse_private_path(value: object) -> str:
    """The path of a file that only its owner may read: absolute, or below the home directory."""
    path = parse_text(value)
    if not path.startswith(("/", "~/")) or "\n" in path:
        raise BadValueError("expected an absolute path, or one that begins with ~/, where the job runs")
    return path


def parse_command(value: object) -> str | tuple[str, ...]:
    """A command: text, which is split like a shell line (no shell runs it), or a list of arguments."""
    if isinstance(value, str):
        try:
            words: list[Any] = shlex.split(value)
        except ValueError as error:
            raise BadValueError(f"cannot be split like a shell line ({error}); a list of arguments is safer") from None
    elif isinstance(value, (list, tuple)):
        words = list(value)
    else:
        raise BadValueError('expected text or a list of arguments such as ["python", "{script}"]')
    for word in words:
        if not isinstance(word, str):
            raise BadValueError(f"expected every argument to be text, but {shown(word)} is not: put it in quotes")
        if "\0" in word:
            raise BadValueError(f"the argument {shown(word)} holds a NUL character, which no argument can")
    if not words or not words[0]:
        raise BadValueError("names no program; expected for example python {script}")
    return value if isinstance(value, str) else tuple(words)


def parse_env(value: object) -> Mapping[str, str]:
    """Environment variables. Whole numbers become text; true, false and fractions must be in quotes."""
    if not isinstance(value, Mapping):
        raise BadValueError('expected names and values such as {"OMP_NUM_THREADS": "2"}')
    return {_env_name(name): _env_value(name, text) for name, text in value.items()}


def _env_name(name: object) -> str:
    if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
        raise BadValueError(
            f"{shown(name)} is not a variable's name: letters, digits and '_', not beginning with a digit"
        )
    if name.startswith("DISPATCHER_") and name not in SETTABLE:
        # They identify the attempt's processes: with another attempt's values they could not be found and stopped.
        settable = ", ".join(sorted(SETTABLE))
        raise BadValueError(f"{name} is set by the dispatcher itself; those that env may set are {settable}")
    return name


def _env_value(name: object, value: object) -> str:
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        kind = shown(value) if isinstance(value, bool | float | None) else f"a {type(value).__name__}"
        raise BadValueError(f"the value of {name} is {kind}: put it in quotes, so that its spelling is clear")
    if "\0" in value:
        raise BadValueError(f"the value of {name} holds a NUL character, which no environment variable can")
    return value


def parse_names(value: object) -> tuple[str, ...]:
    """A list of job ids."""
    if isinstance(value, str):
        raise BadValueError(f"expected a list of job ids: write [{shown(value)}]")
    if not isinstance(value, (list, tuple)):
        raise BadValueError("expected a list of job ids")
    for name in value:
        if not isinstance(name, str):
            raise BadValueError(f"expected a list of job ids, but {shown(name)} is not text")
    return tuple(dict.fromkeys(value))


def parse_words(value: object) -> tuple[str, ...]:
    """One word or a list of words, in order of preference."""
    words = [value] if isinstance(value, str) else value
    if isinstance(words, (list, tuple)) and not words:
        raise BadValueError("the list is empty: expected one name or a list of names, or leave the key out")
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(word, str) and word for word in words):
        raise BadValueError("expected one name or a list of names")
    return tuple(dict.fromkeys(words))


def parse_retry_on(value: object) -> tuple[str, ...]:
    """The failure reasons after which to retry: `exit`, `exit 1`, `signal`, `signal 9`, `out of memory` ..."""
    words = parse_words(value)
    for word in words:
        if word not in FAILURE_REASONS and not _NUMBERED_REASON.fullmatch(word):
            raise BadValueError(f"{shown(word)} is not a failure reason{nearest(word, FAILURE_REASONS)}")
    return words


def parse_gpu_idle(value: object) -> Mapping[str, Any]:
    """`{after: 30m, stop: true}`, each of which may be missing; false: GPUs are not watched."""
    if value is False:
        return {"after_s": None, "stop": False}
    if not isinstance(value, Mapping):
        raise BadValueError("expected keys such as {after: 30m, stop: false}, or false")
    fields: dict[str, Any] = {}
    for key, given in value.items():
        if key == "after":
            fields["after_s"] = parse_duration(given)
        elif key != "stop":
            raise BadValueError(f"unknown key {shown(key)}{nearest(str(key), ('after', 'stop'))}")
        elif isinstance(given, bool):
            fields["stop"] = given
        else:
            raise BadValueError(f"stop is {shown(given)}: expected true or false")
    return fields


def parse_on_end(value: object) -> str:
    """What to do with a job whose attempt was lost or preempted: `requeue` or `fail`."""
    if value not in _ON_END:
        raise BadValueError(f"expected {' or '.join(_ON_END)}{nearest(str(value), _ON_END)}")
    return str(value)


def parse_on_move(value: object) -> str:
    """What becomes of a job whose checkpoint the next outlet cannot see: `stay` or `restart`."""
    if value not in _ON_MOVE:
        raise BadValueError(f"expected {' or '.join(_ON_MOVE)}{nearest(str(value), _ON_MOVE)}")
    return str(value)


def memory_mib(value: object) -> int:
    """MiB from `64G`, `512MB` or `1.5TiB`, rounded up; units are powers of 1024, as in SLURM."""
    amount = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    if amount is None:
        lower = _LOWER_CASE.fullmatch(value) if isinstance(value, str) else None
        raise BadValueError(
            'expected an amount with its unit, such as "64G"'
            if lower is None
            else f'units are upper case: write "{lower["amount"][:40]}{lower["unit"].upper()}"'
        )
    mib = float(amount["amount"]) * _MEMORY_KIB[amount["unit"]] / 2**10
    if mib > _MOST_MIB:
        raise BadValueError(f"too large: expected at most {_MOST_MIB // 2**20}T")
    return math.ceil(mib)


def memory_text(mib: int) -> str:
    """An amount for people, rounded down: `64G`, `1.5G`, `512M`."""
    if mib < 1024:
        return f"{mib}M"
    tenths = mib * 10 // 1024
    return f"{tenths // 10}G" if tenths % 10 == 0 else f"{tenths / 10}G"


def memory_texts(first_mib: int, second_mib: int) -> tuple[str, str]:
    """Two amounts for people who compare them: they look equal only where they are."""
    texts = memory_text(first_mib), memory_text(second_mib)
    return texts if first_mib == second_mib or texts[0] != texts[1] else (f"{first_mib}M", f"{second_mib}M")


def parse_memory(value: object) -> int:
    """An amount of memory that is not nothing, in MiB."""
    mib = memory_mib(value)
    if not mib:
        raise BadValueError('expected an amount that is more than nothing, such as "20G"')
    return mib


def parse_resources(value: object) -> Mapping[str, Any]:
    """The resources that an attempt requests: `chip` and `memory` are text, the others whole numbers.

    `min_chips` 0 asks for no GPU. `memory` is that of one node, and `memory_mib` reads it.
    """
    if not isinstance(value, Mapping):
        raise BadValueError('expected a mapping such as {"chip": "h100", "min_chips": 4}')
    for word, amount in value.items():
        if word not in RESOURCE_WORDS:
            raise BadValueError(f"unknown resource {shown(word)}{nearest(str(word), RESOURCE_WORDS)}")
        if word in ("min_chips", "cpus", "nodes"):
            least = 0 if word == "min_chips" else 1
            if fault := _count_fault(amount, least):
                raise BadValueError(f"{word} is {shown(amount)}: {fault}")
        elif word == "memory":
            try:
                parse_memory(amount)
            except BadValueError as error:
                raise BadValueError(f"memory is {shown(amount)}: {error}") from None
        elif not isinstance(amount, str) or not amount:
            raise BadValueError(f"{word} is {shown(amount)}: expected a name")
    return dict(value)
