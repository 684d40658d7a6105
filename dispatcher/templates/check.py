"""Checks of a manifest's entries before any of them runs: for `matrix make`, `matrix check` and pods."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from pathlib import Path

import msgspec

from dispatcher import contract
from dispatcher.base.outputs import ATTEMPT_DIR
from dispatcher.config import Config
from dispatcher.errors import TemplateError
from dispatcher.matrix.entry import KEYS, Entry
from dispatcher.templates.command import command_line, placeholders, uses_script
from dispatcher.templates.readiness import Readiness, fault_of_values
from dispatcher.templates.spelling import near_misses
from dispatcher.templates.training import render_training


class Findings(msgspec.Struct, frozen=True):
    """The results of a check, one line for all entries that have the same fault.

    `faults` prevent a start. `misspelt` are unread parameters that nearly match a key that is read. `notes` tell of
    other parameters that the template or the command does not read, mostly labels for tables and filters, and of
    commands that do not say where the method looks for results.
    """

    faults: tuple[str, ...] = ()
    misspelt: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_entries(
    config: Config, entries: Iterable[Entry], *, readiness: Readiness | None = None, values: bool = False
) -> Findings:
    """Check `entries`; with `values`, also whether each value can be rendered into a script or a command."""
    ready = readiness or Readiness(config, all_run_here=not config.hosts.hosts)
    # Comparing keys is slow, and most entries have the same keys. With `values` they are all needed again.
    alike: dict[Hashable, _Alike] = {}
    for entry in entries:
        shape = entry.shape()
        group = alike.get(shape)
        if group is None:
            group = alike[shape] = _Alike(entry)
        group.count += 1
        if values:
            group.entries.append(entry)
    unusable = ready.unusable_methods(group.first for group in alike.values())
    faults, misspelt = _Lines(), _Lines()
    labels: dict[str, dict[str, None]] = {}
    reading = _Reading(config, ready)
    for group in alike.values():
        first = group.first
        fault = ready.fault_of_shape(first) or unusable.get(first.method, "")
        faults.add(fault, first, group.count)
        for entry in group.entries if not fault else ():
            faults.add(_value_fault(config, entry), entry)
        reader = reading.reader(first)
        for key, meant in reading.unread(first).items():
            if meant:
                misspelt.add(f"nothing reads {key} (did you mean {meant}?)", first, group.count)
            elif reader:
                labels.setdefault(reader, {})[key] = None
    notes = [
        f"{reader} does not read {', '.join(keys)} (fine for tables and filters)" for reader, keys in labels.items()
    ]
    notes += dict.fromkeys(filter(None, (_where_results_are(config, group.first) for group in alike.values())))
    return Findings(faults.lines(), misspelt.lines(), tuple(notes))


def _where_results_are(config: Config, entry: Entry) -> str:
    """That the command does not tell the script where its result or metrics are looked for; empty when it does."""
    method = config.method(entry.method)
    names = [name for name, file in (("result", method.result), ("metrics", method.metrics)) if file is not None]
    if not names or entry.command is not None or entry.job is not None or uses_script(method, entry):
        return ""
    words = method.command if isinstance(method.command, str) else " ".join(method.command)
    if ATTEMPT_DIR in words or contract.ATTEMPT_DIR in words:
        return ""
    return (
        f"the command of {method.name} does not have {ATTEMPT_DIR}, where its {' and '.join(names)} must be "
        f"(fine if the script goes by ${contract.ATTEMPT_DIR})"
    )


class _Alike(msgspec.Struct):
    """Entries with the same keys: the first, how many they are, and all of them where their values are needed."""

    first: Entry
    count: int = 0
    entries: list[Entry] = []


def _value_fault(config: Config, entry: Entry) -> str:
    """Why a value of the entry cannot be rendered, in the words of its attempt's error; empty when all can."""
    method = config.method(entry.method)
    wrong = fault_of_values(method, entry)
    if wrong:
        return wrong
    try:
        command_line(method, entry, Path("script.py"))
        if uses_script(method, entry):
            render_training(method.template, entry, method)
    except TemplateError as error:
        return str(error).removeprefix(f"{entry.job_id}: ")
    return ""


class _Reading:
    """Which parameters of entries are read by a template, a command or a job's class."""

    def __init__(self, config: Config, ready: Readiness) -> None:
        self._config = config
        self._ready = ready

    def reader(self, entry: Entry) -> str:
        """What reads the parameters of the entry: its template, or the command of its method; empty: something else."""
        method = self._config.method(entry.method)
        if uses_script(method, entry):
            return "" if self._ready.template(method).fault else self._ready.short(str(method.template))
        return f"the command of {method.name}" if entry.command is None and entry.job is None else ""

    def unread(self, entry: Entry) -> dict[str, str]:
        """The entry's parameters that neither the template nor the command nor a job's class reads.

        Each with the key that was probably intended, empty when there is none.
        """
        words = self._words(entry)
        read = {*words, *placeholders(self._config.method(entry.method), entry)}
        # Keys with a dot belong to the job's configuration, which the job checks itself.
        keys = [key for key in entry.params if key not in read and not (_is_job(entry) and "." in key)]
        meant = [word for word in [*KEYS, *words] if not entry.has(word)]
        return {key: next(iter(near_misses(key, meant)), "") for key in keys}

    def _words(self, entry: Entry) -> Collection[str]:
        if _is_job(entry):
            return contract.JOB_WORDS
        method = self._config.method(entry.method)
        return self._ready.template(method).parameters if uses_script(method, entry) else ()


def _is_job(entry: Entry) -> bool:
    return entry.job is not None and entry.command is None


class _Lines:
    """Texts, each with the entries of one method to which it applies: the first of them and their number."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[str, int]] = {}

    def add(self, text: str, first: Entry, count: int = 1) -> None:
        if text:
            job, before = self._found.get((first.method, text), (first.job_id, 0))
            self._found[first.method, text] = job, before + count

    def lines(self) -> tuple[str, ...]:
        return tuple(f"{_who(method, *found)}: {text}" for (method, text), found in self._found.items())


def _who(method: str, first: str, count: int) -> str:
    return first if count == 1 else f"{count} jobs of {method} (such as {first})"
