"""What keeps dispatchers from working on this host: the checks of `dispatcher doctor`. They change nothing.

A finding is `ok`, `unknown` (it could not be proved from here), `warning` or `wrong`, and says how to cure it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files, host
from dispatcher.base.mounts import Mount, mount_of
from dispatcher.config import Config
from dispatcher.doctor.host_checks import Fault, check_bash, check_directories, check_processes, state_paths
from dispatcher.doctor.lock_test import LOCK_NAMES, LockTest
from dispatcher.errors import DispatcherError, ManifestError
from dispatcher.matrix.manifest import parse_manifest
from dispatcher.outlets.local import nvml
from dispatcher.run_state import journal, liveness
from dispatcher.run_state.adoption import adopt_hint, find_unadopted
from dispatcher.run_state.events import Event
from dispatcher.run_state.head import peek_head
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.lock_choice import AUTO, HARDLINK, check_wanted, hardlink_is_in_force
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

OK, UNKNOWN, WARNING, WRONG = "ok", "unknown", "warning", "wrong"

_MIB: Final = 1 << 20
_LITTLE_SPACE: Final = 1024 * _MIB
_NO_SPACE: Final = 20 * _MIB
_FEW_FILES: Final = 10_000
_TIMED: Final = 30
_NVML_TIMEOUT_S: Final = 60.0


class Finding(msgspec.Struct, frozen=True):
    """One check. `value` is what was measured, in the unit that `unit` names; `cure` what to do about it."""

    check: str
    verdict: str
    what: str
    cure: str = ""
    value: float | None = None
    unit: str = ""


Findings = Iterator[Finding]


def check_host(layout: Layout, config: Config | DispatcherError) -> list[Finding]:
    """All that one host can tell by itself; never raises for what it finds."""
    checks: list[tuple[str, Callable[[], Findings]]] = [
        ("python", _python),
        ("bash", _bash),
        ("flock program", _flock_program),
        ("processes", _processes),
        ("gpus", _gpus),
        ("config", lambda: _config(config)),
        ("permissions", lambda: _permissions(layout)),
        ("disk space", lambda: _space(layout)),
        ("journal", lambda: _journal(layout, config)),
        ("status file", lambda: _status_file(layout, config)),
        ("pods", lambda: _pods(layout)),
        ("mount", lambda: _mount(layout)),
    ]
    if isinstance(config, Config):
        checks.insert(5, ("manifest", lambda: _manifest(config)))
    found: list[Finding] = []
    for name, check in checks:
        try:
            found += check()
        except DispatcherError as error:
            found.append(Finding(name, WRONG, str(error)))
        except OSError as error:
            found.append(Finding(name, WRONG, str(files.storage_error(error, "looking at", layout.run_state))))
    return found


def check_locks(layout: Layout, directory: Path, wanted: str) -> list[Finding]:
    """The locks of this mount as one host can test them, on files of `directory`, and what they cost."""
    mount = mount_of(directory)
    test = LockTest(directory)
    found = []
    lying = severity(layout, mount, wanted)
    for kind, name in LOCK_NAMES.items():
        why = test.failure(kind)
        # Only flock is what dispatchers use unless they are told otherwise.
        used = kind in ("flock", wanted)
        verdict, cure = (lying, lock_cure(mount, lying)) if used else (WARNING, "")
        if why is None:
            found.append(Finding(f"{name} here", OK, "a second one is refused while the first is held"))
        else:
            found.append(Finding(f"{name} here", verdict, f"{why} on {mount}", cure))
    if test.failure("flock") is None:
        found.append(_measured("lock latency", test.lock_and_unlock, "to lock and unlock"))
    found.append(_measured("sync latency", test.append_and_sync, "to append a line and sync it"))
    return found


def severity(layout: Layout, mount: Mount, wanted: str) -> str:
    """How bad it is that the kernel's locks do not exclude: nothing relies on them under the hard-link lock."""
    strict = wanted == HARDLINK or hardlink_is_in_force(layout)
    return WARNING if strict and mount.fstype != "fuse.sshfs" else WRONG


def lock_cure(mount: Mount, verdict: str) -> str:
    if verdict == WARNING:
        return f"dispatchers use the hard-link lock here; faster: {mount.cure}"
    return mount.cure


# This host.


def _python() -> Findings:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", OK, f"{version} at {sys.executable}")


def _bash() -> Findings:
    found = check_bash()
    yield Finding("bash", WRONG, found.what, found.cure) if isinstance(found, Fault) else Finding("bash", OK, found)


def _flock_program() -> Findings:
    path = shutil.which("flock")
    if path:
        yield Finding("flock program", OK, path)
    else:
        what = "not found: job.sh cannot be run by hand; dispatchers do not need it"
        yield Finding("flock program", WARNING, what, "install util-linux")


def _processes() -> Findings:
    fault = check_processes()
    if fault is not None:
        yield Finding("processes", WRONG, fault.what, fault.cure)
        return
    first = host.pid_namespace() == host.FIRST_PID_NAMESPACE
    what = "the host's own" if first else f"those of PID namespace {host.pid_namespace()} (a container)"
    yield Finding("processes", OK, what)


def _gpus() -> Findings:
    # In a process of its own: a driver that hangs must not take the doctor with it.
    try:
        done = subprocess.run(
            [sys.executable, nvml.__file__],
            input="",
            capture_output=True,
            text=True,
            timeout=_NVML_TIMEOUT_S,
            check=False,
        )
        answer = json.loads(done.stdout.partition("\n")[0] or "{}")
    except subprocess.TimeoutExpired:
        yield Finding(
            "gpus", WRONG, f"the NVIDIA driver has not answered for {_NVML_TIMEOUT_S:.0f} s", "see nvidia-smi"
        )
        return
    if "count" in answer:
        yield Finding("gpus", OK, f"{answer['count']} seen through NVML")
    else:
        why = answer.get("unavailable", done.stderr.strip()[-200:])
        yield Finding("gpus", WARNING if shutil.which("nvidia-smi") else OK, f"none: {why}")


# The workspace.


def _config(config: Config | DispatcherError) -> Findings:
    if isinstance(config, Config):
        yield Finding("config", OK, f"{config.layout.config_file.name}: lock {config.lock}")
    else:
        yield Finding("config", WRONG, str(config), "correct the file; no dispatcher starts before")


def _manifest(config: Config) -> Findings:
    try:
        # What entries need may stand in another manifest.
        manifest = parse_manifest(config.matrix.read_bytes(), str(config.matrix), None)
    except FileNotFoundError:
        what = f"there is no {config.matrix}"
        yield Finding("manifest", WARNING, what, "write it, or make it with `dispatcher matrix make SPEC`")
        return
    except ManifestError as error:
        yield Finding("manifest", WRONG, str(error), "correct it; `dispatcher matrix check` tells more")
        return
    yield Finding("manifest", OK, f"{config.matrix}: {len(manifest)} entries")


def _permissions(layout: Layout) -> Findings:
    fault = check_directories(layout)
    if fault is not None:
        yield Finding("permissions", WRONG, fault.what, fault.cure)
        return
    paths = state_paths(layout)
    open_to_all = [path for path in paths if os.stat(path).st_mode & 0o002]
    if open_to_all:
        yield Finding("permissions", WARNING, f"everybody may write {open_to_all[0]}", f"chmod o-w {open_to_all[0]}")
    else:
        yield Finding("permissions", OK, "this user may read and write the run state, others outside its group may not")


def _space(layout: Layout) -> Findings:
    found = os.statvfs(layout.run_state if layout.run_state.exists() else layout.root)
    free = found.f_bavail * found.f_frsize
    cure = "free some space: on a full disk nothing is lost, but nothing is claimed either"
    verdict = WRONG if free < _NO_SPACE else WARNING if free < _LITTLE_SPACE else OK
    yield Finding(
        "disk space", verdict, f"{free / _MIB:,.0f} MiB free", cure if verdict != OK else "", free / _MIB, "MiB"
    )
    if found.f_files and found.f_favail < _FEW_FILES:
        verdict = WRONG if found.f_favail < 100 else WARNING
        yield Finding("inodes", verdict, f"only {found.f_favail} more files can be made", cure)


def _journal(layout: Layout, config: Config | DispatcherError) -> Findings:
    head = peek_head(layout.lock_file)
    newest = journal.newest_generation(layout)
    if newest is None:
        if head is not None:
            cure = "the next start rebuilds it from matrix_status.json; a backup knows more"
            yield Finding("journal", WRONG, f"there is none, but {layout.lock_file} knows of one", cure)
        else:
            yield Finding("journal", OK, "there is none yet: the first dispatcher begins it")
        return
    store = Store(layout, by="doctor")
    store.refresh(to_the_end=True)
    path = layout.journal(store.generation or newest)
    size = os.stat(path).st_size if path.exists() else 0
    if head is not None and head.generation == store.generation and size < head.length:
        mount = mount_of(path)
        what = f"{path}: {size} bytes, but the lock file says that {head.length} were written"
        cure = f"`dispatcher doctor --repair` goes on without them; if other hosts are shown more: {mount.cure}"
        yield Finding("journal", WRONG, what, cure)
    elif size > store.offset:
        what = f"{path}: {size - store.offset} bytes at the end are no whole lines"
        yield Finding("journal", WARNING, what, "the next change cuts them off: they were never finished")
    else:
        yield Finding("journal", OK, f"{path}: {len(store.records)} records, line {store.seq}")
    if isinstance(config, Config) and store.fold.lock_kind is not None:
        used = HARDLINK if hardlink_is_in_force(layout) else store.fold.lock_kind
        check_wanted(layout, config.lock, used)
        yield Finding("kind of lock", OK, f"{used} (dispatcher.yaml: {config.lock})")


def _status_file(layout: Layout, config: Config | DispatcherError) -> Findings:
    if isinstance(config, Config):
        store = Store(layout, by="doctor", lock=config.lock, manifest_jobs=ManifestJobs(config).ids)
    else:
        store = Store(layout, by="doctor")
    store.refresh(to_the_end=True)
    unadopted = find_unadopted(layout, (config.matrix,) if isinstance(config, Config) else ())
    if unadopted is not None:
        yield Finding("status file", WARNING, f"nobody has adopted {unadopted}", adopt_hint(layout, unadopted))
        return
    if not layout.status_file.exists():
        missing = bool(store.records)
        what = "missing; the next change writes it anew" if missing else "there is none yet"
        yield Finding("status file", WARNING if missing else OK, what)
        return
    outcomes = store.pending_edits()
    if store.problem is not None:
        yield Finding("status file", WRONG, store.problem, "correct it, or `dispatcher status --restore`")
        return
    refused = len(store.fold.refusals)
    waiting = sum(outcome.event is not Event.REFUSED for outcome in outcomes)
    what = f"{layout.status_file}: can be read" + (f"; {waiting} hand edits not taken in yet" if waiting else "")
    if refused:
        yield Finding("status file", WARNING, f"{what}; {refused} hand edits were refused", "see `dispatcher status`")
    else:
        yield Finding("status file", OK, what)


def _pods(layout: Layout) -> Findings:
    watch = liveness.Watch()
    infos = liveness.read_pods(layout)
    alive = [info for info in infos if liveness.pod_is_alive(layout, info, watch, float("inf"))]
    dead = [info for info in infos if info not in alive and info.phase != "ended"]
    kinds = Counter(info.lock for info in alive)
    what = f"{len(alive)} run" + (f" ({', '.join(f'{i.pod} on {i.host}' for i in alive)})" if alive else "")
    if dead:
        what += f"; ended without saying so: {', '.join(info.pod for info in dead)}"
    if len(kinds) > 1:
        shown = ", ".join(f"{info.pod}: {info.lock}" for info in alive)
        yield Finding("pods", WRONG, f"they use different kinds of lock ({shown})", "end them and start them again")
    else:
        yield Finding("pods", OK, what)


def _mount(layout: Layout) -> Findings:
    mount = mount_of(layout.run_state if layout.run_state.exists() else layout.root)
    options = mount.options.split(",")
    lying = [o for o in options if o == "nolock" or (o.startswith("local_lock=") and o != "local_lock=none")]
    if "ro" in options:
        yield Finding("mount", WRONG, f"{mount} is read-only", "mount it with write access")
    elif mount.fstype == "fuse.sshfs":
        what = f"{mount}: locks stay on each host, and old file content is shown for up to 20 s"
        yield Finding("mount", WRONG, what, mount.cure)
    elif mount.fstype.startswith("nfs") and lying:
        verdict = severity(layout, mount, AUTO)
        what = f"{mount}: {' and '.join(lying)} keeps locks from reaching other hosts"
        yield Finding("mount", verdict, what, lock_cure(mount, verdict))
    elif {"soft", "softerr"} & set(options):
        what = f"{mount}: a soft mount gives up and reports errors when the file server is slow"
        yield Finding("mount", WARNING, what, "mount it with the option hard")
    else:
        kind = "may be shared by several hosts" if mount.is_network else "is of this host only"
        yield Finding("mount", OK, f"{mount} {kind}")


def _measured(check: str, measure: Callable[[], None], what: str) -> Finding:
    times = []
    try:
        for _ in range(_TIMED):
            begun = time.perf_counter()
            measure()
            times.append(1000 * (time.perf_counter() - begun))
    except OSError as error:
        return Finding(check, WRONG, f"{error.strerror} while measuring it")
    median = statistics.median(times)
    return Finding(check, OK, f"{median:.2f} ms {what} (worst of {_TIMED}: {max(times):.1f} ms)", "", median, "ms")
