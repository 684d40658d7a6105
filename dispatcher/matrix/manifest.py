"""Reading and writing manifests: all faults of a file at once, and 100,000 entries in a fraction of a second."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dispatcher.base import files
from dispatcher.base.messages import first_names, shortened
from dispatcher.base.users import name_of
from dispatcher.base.values import shown
from dispatcher.errors import ManifestError, StorageError
from dispatcher.matrix import strict_json
from dispatcher.matrix.entries import Entries
from dispatcher.matrix.entry import OWNER, Entry, read_entry
from dispatcher.matrix.needs import Needs, find_cycles


class Manifest(msgspec.Struct, frozen=True):
    """The entries of a manifest by job id, in the manifest's order."""

    path: Path
    entries: Mapping[str, Entry]


def load_manifest(path: str | os.PathLike[str], known_ids: Collection[str] = ()) -> Manifest:
    """Read the manifest at `path`; ManifestError lists every fault.

    `known_ids` are the jobs in the run state, also of other manifests of the workspace: entries may need them.
    """
    data, owner = read_file(path)
    return Manifest(Path(path), parse_manifest(data, str(path), known_ids, owner))


def read_file(path: str | os.PathLike[str]) -> tuple[bytes, str]:
    """The content of a manifest that must be there, and who owns the file. Raises ManifestError."""
    try:
        with open(path, "rb", opener=files.open_at_once) as file:
            return file.read(), name_of(os.fstat(file.fileno()).st_uid)
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: str | os.PathLike[str], error: OSError) -> ManifestError:
    """What is wrong with a manifest that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        problem = "there is no such file; write it, or make it with `dispatcher matrix make`"
    else:
        problem = f"cannot be read: {error.strerror}"
    return ManifestError(str(path), [problem])


def no_manifest_text(path: Path, lost: Sequence[str]) -> str:
    """That a workspace has submitted jobs and no manifest; `lost` are queued jobs that one must have listed."""
    if not lost:
        return f"there is no {path}: only jobs of `dispatcher submit -- COMMAND` are run"
    cure = "restore it, or make it with `dispatcher matrix make SWEEP`; `dispatcher delete` forgets a job"
    return f"there is no {path}, and no other manifest lists {first_names(lost)}: {cure}"


def parse_manifest(
    data: bytes, where: str, known_ids: Collection[str] | None = (), owner: str | None = None
) -> Entries:
    """The entries in `data`, a JSON list or an object keyed by job id; `known_ids` None: any id may be needed.

    `owner` owns the jobs whose entries do not say who does.
    """
    entries, faults = Entries(known_ids or ()), list[str]()
    reader = _Reader(entries, owner)
    with _collector_paused():
        try:
            members = strict_json.Members(data)
            for order, document in enumerate(_documents(members, faults)):
                entry = reader.read(document, order)
                if entry is not None:
                    entries.add(entry)
            faults = [*members.duplicates(), *faults, *reader.faults(known_ids)]
        except ValueError as error:
            raise ManifestError(where, [str(error)]) from None
    if faults:
        raise ManifestError(where, faults)
    entries.finish()
    return entries


class _JobId(msgspec.Struct, gc=False):
    job_id: str


_decode_ids = msgspec.json.Decoder(list[_JobId] | dict[str, msgspec.Raw]).decode


def job_ids(data: bytes) -> frozenset[str]:
    """The ids of the entries in `data`, whatever other faults they have; empty when it is not a manifest.

    Several times as fast as reading the entries.
    """
    try:
        content = _decode_ids(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()
    return frozenset(content if isinstance(content, dict) else [entry.job_id for entry in content])


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: parsing makes no cycles, and scans of the growing heap would double its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_entries(documents: Iterable[Any], known_ids: Collection[str] | None) -> tuple[dict[str, Entry], list[str]]:
    """The entries, and every fault in them and between them. Items are removed from the documents."""
    entries: dict[str, Entry] = {}
    reader = _Reader(entries)
    for order, document in enumerate(documents):
        entry = reader.read(document, order)
        if entry is not None:
            entries[entry.job_id] = entry
    return entries, reader.faults(known_ids)


class _Reader:
    """Reads entries one by one, and finds the faults in them and between them. `entries` are those so far."""

    def __init__(self, entries: Mapping[str, Entry], owner: str | None = None) -> None:
        self._entries = entries
        self._owner = owner
        self._positions: dict[str, list[int]] = {}
        self._faults: list[str] = []
        # Entries that could not be read: others may need them.
        self._mentioned: set[str] = set()
        self._needs: dict[str, tuple[str, ...]] = {}

    def read(self, document: Any, order: int) -> Entry | None:
        """The entry in `document`, whose items are removed, to be added to `entries`; None for none or a duplicate."""
        if not isinstance(document, dict):
            self._faults.append(f"entry {order + 1} = {shown(document)}: expected an object with job_id and method")
            return None
        job_id = document.get("job_id")
        entry, found = read_entry(document, order, self._owner)
        if found:
            name = f"{shown(job_id)[1:-1]} (entry {order + 1})" if isinstance(job_id, str) else f"entry {order + 1}"
            self._faults.extend(f"{name}: {fault}" for fault in found)
        if entry is None:
            self._mentioned.add(str(job_id))
            return None
        if entry.job_id in self._entries:
            first = self._entries[entry.job_id].order + 1
            self._positions.setdefault(entry.job_id, [first]).append(order + 1)
            return None
        if entry.needs:
            self._needs[entry.job_id] = entry.needs
        return entry

    def faults(self, known_ids: Collection[str] | None) -> list[str]:
        """Every fault, after all entries were read."""
        faults = self._faults
        for job_id, places in self._positions.items():
            *others, last = shortened(list(map(str, places)))
            listed = f"{', '.join(others)} and {last}"
            faults.append(f"duplicate job_id: {job_id} (entries {listed}); give each entry a job_id of its own")
        faults.extend(_case_faults(self._entries))
        faults.extend(_needs_faults(self._needs, self._entries, known_ids, self._mentioned))
        return faults


def _documents(members: strict_json.Members, faults: list[str]) -> Iterator[Any]:
    """The entries as objects with their job_id; the faults of the file as a whole are added to `faults`."""
    if members.scalar is not None:
        faults.append(f"holds {members.scalar}: expected a list of entries, or an object keyed by job_id")
    elif members.keys is None:
        yield from members.values()
    elif members.has_text("job_id"):
        faults.append("holds a single entry: put it into a list, [{...}]")
    else:
        yield from _keyed(zip(members.keys, members.values(), strict=True), faults)


def _keyed(pairs: Iterable[tuple[str, Any]], faults: list[str]) -> Iterator[dict[str, Any]]:
    for job_id, document in pairs:
        if not isinstance(document, dict):
            faults.append(f"{shown(job_id)[1:-1]} = {shown(document)}: expected an object with the entry's method")
            continue
        inner = document.setdefault("job_id", job_id)
        if inner != job_id:
            faults.append(f"{job_id}: job_id = {shown(inner)}: expected the same as its key")
            document["job_id"] = job_id
        yield document


def _case_faults(entries: Collection[str]) -> list[str]:
    """Faults for ids that differ only in case: on a filesystem that ignores case they would share a directory."""
    # Hashes take less room than ids, and two that are equal by chance only cost a closer look.
    if len({hash(job_id.lower()) for job_id in entries}) == len(entries):
        return []
    groups: dict[str, list[str]] = {}
    for job_id in entries:
        groups.setdefault(job_id.lower(), []).append(job_id)
    return [
        f"{' and '.join(shortened(ids))}: differ only in case, and would share a directory on some filesystems: "
        "rename one"
        for ids in groups.values()
        if len(ids) > 1
    ]


def _needs_faults(
    needs: Needs, entries: Collection[str], known_ids: Collection[str] | None, mentioned: set[str]
) -> list[str]:
    if not needs:
        return []
    faults: list[str] = []
    if known_ids is not None:
        known = known_ids if isinstance(known_ids, (set, frozenset, Mapping)) else set(known_ids)
        for job_id, needed in needs.items():
            faults.extend(
                f"{job_id}: needs = {shown(other)}: no entry of this manifest{_similar(other, entries)}"
                for other in needed
                if other not in entries and other not in known and other not in mentioned
            )
    cycles = [" -> ".join(shortened(cycle)) for cycle in find_cycles(needs)]
    faults.extend(f"{cycle}: a cycle of needs, so none of these jobs can start" for cycle in cycles)
    return faults


def _similar(job_id: str, entries: Collection[str]) -> str:
    """The nearest id among a few candidates: comparing with 100,000 ids would take minutes."""
    import difflib

    alike = [other for other in entries if other[:1] == job_id[:1]]
    closer = [other for other in alike if other[:8] == job_id[:8]]
    candidates = (closer or alike)[:500]
    match = difflib.get_close_matches(job_id, candidates, n=1)
    return f" (did you mean {match[0]}?)" if match else ", and no such job in the run state"


def write_manifest(
    path: str | os.PathLike[str],
    entries: Iterable[Mapping[str, Any]],
    known_ids: Collection[str] = (),
    check: Callable[[Manifest], None] | None = None,
) -> Manifest:
    """Check `entries` and write them to `path`, one line each, with their keys in the given order.

    The file is replaced atomically. ManifestError lists every fault, and then nothing is written. `known_ids` are jobs
    of other manifests that entries may need. `check` is called before anything is written, and may raise.
    """
    lines = []
    faults = []
    for position, document in enumerate(entries, 1):
        try:
            lines.append(json.dumps(document, ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            name = document.get("job_id", "") if isinstance(document, Mapping) else ""
            faults.append(f"{name or f'entry {position}'}: {_unwritable(document)}cannot be written as JSON: {error}")
    if faults:
        raise ManifestError(str(path), faults)
    try:
        data = ("[\n" + ",\n".join(lines) + "\n]\n").encode()
    except UnicodeEncodeError as error:
        problem = f"text with half of a surrogate pair, {error.object[error.start]!r}, cannot be written as UTF-8"
        raise ManifestError(str(path), [problem]) from None
    manifest = Manifest(Path(path), parse_manifest(data, str(path), known_ids))
    if check is not None:
        check(manifest)
    _replace(Path(os.path.realpath(path)), data)
    return manifest


def append_entries(
    path: Path, entries: Iterable[Mapping[str, Any]], known_ids: Collection[str], owner: str | None
) -> Manifest:
    """Write the manifest with these entries after its own; those without a user get `owner`. See write_manifest."""
    old = load_manifest(path, known_ids).entries.values() if path.exists() else ()
    # Who adds to a manifest owns its file from then on, and its other jobs stay whose they are.
    new = [{**entry, OWNER: owner} if entry.get(OWNER) is None else entry for entry in entries]
    return write_manifest(path, [*(entry.document() for entry in old), *new], known_ids)


def _unwritable(document: Any) -> str:
    """Which key has what JSON cannot hold, such as a number that was read as infinity."""
    for key, value in document.items() if isinstance(document, Mapping) else ():
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return f"{key} = {shown(value)}: "
    return ""


def _replace(path: Path, data: bytes) -> None:
    """Publish `data` at `path` by rename; the directory is made if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_file(path, data)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}; the old file, if any, is unchanged") from None
