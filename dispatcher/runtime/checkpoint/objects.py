"""Checkpoints in an object store, through obstore: first the files, then the manifest, put only if it is absent.

    <series>/<name>/manifest.json           commits the checkpoint
    <series>/<name>/<blobs>/checkpoint/...  its files, under a prefix of their own: writers of one name never mix
    <series>/latest                         names the latest checkpoint

Failed requests are repeated for `retry_timeout_s`. A manifest that was stored although its response was lost is
recognised.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from dispatcher.base.storing import storing
from dispatcher.checkpoints.checksum import Checksum, of_bytes, pieces
from dispatcher.checkpoints.fence import Run
from dispatcher.checkpoints.file_tree import files_below, remove_tree
from dispatcher.checkpoints.manifest import MANIFEST, FileRecord, Manifest, decode, encode
from dispatcher.checkpoints.scratch import Scratch
from dispatcher.checkpoints.storage import DAMAGED, LATEST, SET_ASIDE, Guard
from dispatcher.errors import CheckpointError, DamagedCheckpointError, StorageError
from dispatcher.runtime.checkpoint import verify

if TYPE_CHECKING:
    from obstore import GetResult, PutMode, UpdateVersion
    from obstore.store import ObjectStore

T = TypeVar("T")

_PART_BYTES: Final = 16 * 1024 * 1024
_AT_ONCE: Final = 4
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0
_TRIES: Final = 5

# Errors that a retry does not change; 408 and 429 come from an overloaded server.
_CLIENT_ERROR: Final = re.compile(r"status code: 4(?!08|29)\d\d")
_REFUSED: Final = re.compile(r"status code: 40[13]|<Code>(?:ExpiredToken|InvalidToken|InvalidAccessKeyId)</Code>")
# The body of a response may contain the key's id, a session token or data signed with them.
_BODY: Final = re.compile(r"(status code: \d+[^:<]*)(?::?\s*)<.*", re.DOTALL)
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")

_log = logging.getLogger(__name__)


class ObjectStorage:
    """A series of checkpoints under the prefix `url`; `scratch` is a local directory."""

    def __init__(self, url: str, scratch: Path, run: Run, retry_timeout_s: float) -> None:
        self.url = url
        self._run = run
        self._retry_timeout_s = retry_timeout_s
        self._scratch = Scratch(scratch)
        self._store = _open_store(url)
        # Manifests by key, with their ETags: read again only when the ETag changes.
        self._known: dict[str, tuple[str | None, bytes]] = {}

    def staging(self) -> Path:
        return self._scratch.make_directory("the scratch directory for checkpoints cannot be prepared")

    def clean(self, staged: Path) -> None:
        remove_tree(staged)

    def publish(self, staged: Path, name: str, draft: Manifest, guard: Guard) -> Manifest:
        blobs = f"{_owner(self._run)}{uuid.uuid4().hex[:12]}"
        records = [self._upload(path, f"{name}/{blobs}/{relative}", relative) for relative, path in files_below(staged)]
        manifest = msgspec.structs.replace(draft, files=tuple(records), blobs=blobs)
        guard(None)
        replaced = self._commit(f"{name}/{MANIFEST}", encode(manifest), guard)
        if replaced is not None:
            self._remove_blobs(name, replaced.blobs)
        self._remove_uncommitted(name, blobs)
        return manifest

    def manifests(self) -> Iterator[tuple[str, bytes]]:
        found = {}
        for key, tag in self._list(""):
            name, _, last = key.rpartition("/")
            if last == MANIFEST and name:
                known = self._known.get(key)
                data = known[1] if known is not None and tag is not None and known[0] == tag else self._get(key)
                if data is not None:
                    found[key] = (tag, data)
                    yield name, data
        self._known = found

    def manifest(self, name: str) -> bytes | None:
        return self._get(f"{name}/{MANIFEST}")

    def is_complete(self, name: str, manifest: Manifest) -> bool:
        prefix = f"{name}/{manifest.blobs}/"

        def sizes() -> dict[str, int]:
            listed = self._store.list(prefix).collect()
            return {each["path"].removeprefix(prefix): each["size"] for each in listed}

        found = self._in_bucket(f"{self.url}/{prefix}: cannot be listed", sizes)
        return all(found.get(each.path) == each.size for each in manifest.files)

    @contextlib.contextmanager
    def opened(self, name: str, manifest: Manifest) -> Iterator[tuple[Path, bool]]:
        local = self.staging()
        try:
            problems: list[str] = []
            for record in manifest.files:
                problems += self._download(name, manifest, record, local)
            if problems:
                raise verify.damaged(f"{self.url}/{name}", problems)
            yield local, True
        finally:
            self.clean(local)

    def read(self, name: str, manifest: Manifest, path: str) -> bytes | None:
        return self._get(f"{name}/{manifest.blobs}/{path}")

    def remove(self, name: str) -> None:
        data = self._get(f"{name}/{MANIFEST}")
        self._delete([f"{name}/{MANIFEST}"])
        if data is not None:
            with contextlib.suppress(DamagedCheckpointError):
                self._remove_blobs(name, decode(data, f"{self.url}/{name}/{MANIFEST}").blobs)

    def set_aside(self, name: str, folder: str) -> str:
        data = self._get(f"{name}/{MANIFEST}")
        aside = f"{name}/{_aside(folder)}"
        if data is not None:
            self._put(aside, data)
            self._delete([f"{name}/{MANIFEST}"])
        return f"{self.url}/{aside}"

    def damaged(self) -> str | None:
        aside = (key for key, _ in self._list("") if key.endswith(f"/{_aside(DAMAGED)}"))
        key = next(aside, None)
        return None if key is None else f"{self.url}/{key}"

    def read_pointer(self) -> bytes | None:
        return self._get(LATEST)

    def write_pointer(self, data: bytes) -> None:
        self._put(LATEST, data)

    def close(self) -> None:
        self._scratch.close()

    def _upload(self, path: Path, key: str, relative: str) -> FileRecord:
        """Upload one file, and compute its checksum from the uploaded bytes."""
        size = path.stat().st_size

        def put() -> FileRecord:
            if size <= _PART_BYTES:
                data = path.read_bytes()
                self._store.put(key, data, use_multipart=False)
                return FileRecord(relative, len(data), of_bytes(data))
            checksum = Checksum()
            parts = pieces(path, checksum, _PART_BYTES)
            self._store.put(key, parts, chunk_size=_PART_BYTES, max_concurrency=_AT_ONCE)
            return FileRecord(relative, checksum.size, checksum.hex())

        return self._in_bucket(f"{self.url}/{key}: could not be uploaded", put)

    def _download(self, name: str, manifest: Manifest, record: FileRecord, local: Path) -> list[str]:
        """Download one file, if need be twice; returns its faults."""
        target = local / record.path
        os.makedirs(target.parent, exist_ok=True)
        key = f"{name}/{manifest.blobs}/{record.path}"

        def fetch() -> list[str]:
            checksum = Checksum()
            with open(target, "wb", buffering=0) as file:
                for piece in self._store.get(key).stream(min_chunk_size=_PART_BYTES):
                    checksum.update(memoryview(piece))
                    view = memoryview(piece)
                    while view:
                        view = view[file.write(view) :]
            return verify.difference(record, checksum.size, checksum.hex())

        with storing(f"{target}: the checkpoint could not be downloaded"):
            try:
                doing = f"{self.url}/{key}: could not be downloaded"
                return self._retried(doing, fetch) and self._retried(doing, fetch)
            except FileNotFoundError:
                return [f"{record.path}: missing"]

    def _commit(self, key: str, data: bytes, guard: Guard) -> Manifest | None:
        """Put the manifest if it is absent, or replace one if `guard` allows it; returns the replaced one."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        doing = f"{self.url}/{key}: could not be committed"
        expected: UpdateVersion | None = None
        replaced: Manifest | None = None
        for _ in range(_TRIES):
            try:
                mode: PutMode = expected or "create"
                self._retried(doing, functools.partial(self._store.put, key, data, mode=mode, use_multipart=False))
                return replaced
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                # Also the response to a repeated request whose first try succeeded.
                found = self._get_with_version(key)
            if found is None:
                expected = replaced = None
                continue
            present, expected = found
            if present == data:
                return replaced
            with contextlib.suppress(DamagedCheckpointError):
                replaced = decode(present, f"{self.url}/{key}")
                guard(replaced)
        raise CheckpointError(f"{doing}: other processes keep changing it; do several jobs save here?")

    def _remove_blobs(self, name: str, blobs: str) -> None:
        self._delete([key for key, _ in self._list(f"{name}/{blobs}/")])

    def _remove_uncommitted(self, name: str, current: str) -> None:
        """Remove uncommitted files that older attempts of this job uploaded under this name."""
        older = re.compile(rf"{re.escape(name)}/{re.escape(self._run.job)}\.(\d+)\.[0-9a-f]+/.+")
        keys = []
        for key, _ in self._list(f"{name}/"):
            match = older.fullmatch(key)
            if match and self._run.job and int(match.group(1)) < self._run.attempt and f"/{current}/" not in key:
                keys.append(key)
        if not (keys and any(self._get(f"{name}/{_aside(folder)}") for folder in (DAMAGED, SET_ASIDE))):
            self._delete(keys)

    def _list(self, prefix: str) -> Iterator[tuple[str, str | None]]:
        """Every key below `prefix` with its ETag."""
        doing = f"{self.url}/{prefix}: cannot be listed"
        listed = self._in_bucket(doing, lambda: self._store.list(prefix or None).collect())
        for each in listed:
            yield each["path"], each["e_tag"]

    def _get(self, key: str) -> bytes | None:
        found = self._get_with_version(key)
        return None if found is None else found[0]

    def _get_with_version(self, key: str) -> tuple[bytes, UpdateVersion] | None:
        def get() -> tuple[bytes, UpdateVersion]:
            result: GetResult = self._store.get(key)
            meta = result.meta
            version: UpdateVersion = {"e_tag": meta["e_tag"]}
            if meta["version"] is not None:
                version["version"] = meta["version"]
            return bytes(result.bytes()), version

        try:
            return self._retried(f"{self.url}/{key}: cannot be read", get)
        except FileNotFoundError:
            return None

    def _put(self, key: str, data: bytes) -> None:
        self._in_bucket(f"{self.url}/{key}: cannot be written", lambda: self._store.put(key, data, use_multipart=False))

    def _delete(self, keys: list[str]) -> None:
        if keys:
            with contextlib.suppress(FileNotFoundError):
                self._retried(f"{self.url}: objects cannot be removed", lambda: self._store.delete(keys))

    def _in_bucket(self, doing: str, request: Callable[[], T]) -> T:
        """As `_retried`, for requests whose "not found" can only mean the bucket."""
        try:
            return self._retried(doing, request)
        except FileNotFoundError as error:
            raise StorageError(f"{doing}: {_first_line(error)}; is there such a bucket?") from error

    def _retried(self, doing: str, request: Callable[[], T]) -> T:
        """The response to a request, which is repeated while the server fails or cannot be reached."""
        from obstore import exceptions

        passed_on = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError)
        deadline_s = time.monotonic() + self._retry_timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return request()
            except passed_on:
                raise
            except exceptions.BaseError as error:
                advice = _permanent_advice(error)
                if advice is not None:
                    # Not the error itself: see _BODY.
                    raise StorageError(f"{doing}: {_first_line(error)}; {advice}") from None
                if time.monotonic() + pause_s > deadline_s:
                    raise StorageError(
                        f"{doing}: {_first_line(error)}; tried for {self._retry_timeout_s:.0f} s. Earlier checkpoints "
                        "are unaffected; check the server and the network"
                    ) from None
                _log.warning("%s, trying again: %s", doing, _first_line(error))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _aside(folder: str) -> str:
    """The name of the manifest of a checkpoint that is set aside."""
    return f"manifest.{folder}.json"


def default_scratch() -> Path:
    """The local directory in which checkpoints for an object store are assembled."""
    return Path(tempfile.gettempdir()) / f"dispatcher-{os.getuid()}" / "ckpt.tmp"


def _owner(run: Run) -> str:
    return f"{run.job}.{run.attempt}." if run.job else ""


def _first_line(error: Exception) -> str:
    """The error in one line; of a server's response only its status and its code, never its body."""
    text = str(error).strip()
    answer = _BODY.search(text)
    if answer is None:
        return text.split("\n", 1)[0][:300]
    code = _CODE.search(text)
    return text[: answer.end(1)].split("\n", 1)[0][:300] + (f" ({code.group(1)})" if code else "")


def _permanent_advice(error: Exception) -> str | None:
    """What to do about an error that a retry cannot change; None when a retry may help."""
    from obstore import exceptions

    text = str(error)
    if "builder error" in text:
        # No request was made: only https:// is allowed without a setting.
        return (
            "set AWS_ALLOW_HTTP=true in the environment to use an endpoint of http://, without encryption, or "
            "AWS_ENDPOINT_URL to one of https://"
        )
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError) or _REFUSED.search(text):
        return (
            "the server refuses the credentials, or what they may do there: check AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or what else the store reads, and their permissions for this bucket"
        )
    if isinstance(error, exceptions.InvalidPathError):
        return "choose other names"
    return "is there such a bucket?" if _CLIENT_ERROR.search(text) else None


def _open_store(url: str) -> ObjectStore:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise StorageError(f"{url}: object stores need the package obstore: pip install obstore") from error
    # Few retries here: the long wait for a server that cannot be reached is in _retried, which also starts a file over.
    retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
    return from_url(url, retry_config=retries)
