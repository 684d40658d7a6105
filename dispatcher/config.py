"""dispatcher.yaml as a frozen, typed configuration; a workspace without that file has the defaults."""

from __future__ import annotations

import enum
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatcher.base import devices, files, outputs, values
from dispatcher.base.running_limits import RunningLimit, parse_limits, parse_max_running
from dispatcher.base.values import BadValueError, shown
from dispatcher.base.variables import RECORDED_VARIABLES, looks_secret
from dispatcher.errors import ConfigError, nearest
from dispatcher.hosts.container import parse_container
from dispatcher.hosts.options import parse_pbs, parse_slurm
from dispatcher.hosts.types import Container, Hosts, PbsOptions, SlurmOptions
from dispatcher.workspace import STATUS_FILE, Layout

if TYPE_CHECKING:
    from dispatcher.notify_config import Notify


class LockKind(enum.StrEnum):
    """The kinds of claims lock. Whatever depends on the kind names a member: a new one has to be decided there."""

    FLOCK = "flock"
    LOCKF = "lockf"
    HARDLINK = "hardlink"


LOCK_KINDS: Final = ("auto", *(kind.value for kind in LockKind))


class CodeMode(enum.StrEnum):
    """Which code the attempts on a host run: HEAD, the tracked files as they are now, or what the host has."""

    SHIP = "ship"
    DIRTY = "dirty"
    NONE = "none"


# A variable, or all whose names begin so.
_VARIABLES: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")

# Where Python looks for modules besides its own environment: those of the dispatcher are not for another interpreter.
PYTHON_PLACES: Final = ("PYTHONPATH", "PYTHONHOME")

_NOTHING: Final[Mapping[str, Any]] = {}
_GPU_IDLE_AFTER_S: Final = 1800.0
_MOST_PAUSE_AFTER: Final = 200
# So many failures of a method are remembered (run_state/facets/pauses.py).
_MOST_FAILS: Final = 1_000


class GpuIdle(msgspec.Struct, frozen=True):
    """A running job whose GPUs have been at 0 % for `after_s` leaves them idle; None: no one looks.

    `stop`: it is stopped then, and has failed.
    """

    after_s: float | None = _GPU_IDLE_AFTER_S
    stop: bool = False


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """How the jobs of one method are started, unless an entry overrides it.

    `command` has placeholders: `{script}` is the rendered training script, `{python}` the interpreter, `{attempt_dir}`
    the attempt's directory, any other `{key}` a value of the entry. `setup` are shell lines that run before the command
    in the same shell. `python` is an interpreter, or the directory of a virtual or conda environment; None: the one
    that runs the dispatcher, or the one that `setup` puts first on PATH. `gpus` None: unset. `gpu_memory_mib` is what a
    job takes of its GPU, None: all of it, or its share. `backoff_s` is the pause before the first retry; it doubles
    with each further one. `on_lost` and `on_preempted`: `requeue`, or `fail` like any other failure.

    `container` is what the command runs in, None: the host's, if it has one. `slurm` and `pbs` count on hosts of these
    types. `queue_limit_s` is for how long an attempt
    may wait in an outlet's queue before another outlet is tried; None: for ever. `pack`: up to so many jobs run in one
    submission, one after the other. `on_move`: a job whose checkpoint the next outlet cannot see waits for one that can
    (`stay`), or starts anew (`restart`). `stall_after_s`: a running job that has reported no progress for so long is
    stalled; None: as `Config.stall_after_s`. `gpu_idle` are the fields of a GpuIdle that it sets; None: it sets none.
    `snapshot`: attempts run a copy of the code as it was when the job was queued. `max_running`: so many attempts of
    the method may be in flight at once, in all pods together; None: any number. `max_fails`: once so many of its jobs
    have failed, the method is paused; None: for no number. `pause_after`: once so many of its jobs have failed
    alike, what these have in common is paused (see pod/breaker.py); None: never. `result` and `metrics` are the files
    in which its script leaves them itself; None: it reports them, or has none.
    """

    name: str
    template: Path
    command: str | tuple[str, ...] = ("{python}", "{script}")
    setup: str = ""
    python: Path | None = None
    time_limit_s: float | None = None
    env: Mapping[str, str] = _NOTHING
    env_file: str | None = None
    gpus: int | None = None
    gpu_memory_mib: int | None = None
    retries: int = 0
    retry_on: tuple[str, ...] = ()
    backoff_s: float = 30.0
    on_lost: str = "requeue"
    on_preempted: str = "requeue"
    resources: Mapping[str, Any] = _NOTHING
    container: Container | None = None
    slurm: SlurmOptions | None = None
    pbs: PbsOptions | None = None
    queue_limit_s: float | None = None
    pack: int = 1
    on_move: str = "stay"
    stall_after_s: float | None = None
    gpu_idle: Mapping[str, Any] | None = None
    snapshot: bool = False
    max_running: int | None = None
    max_fails: int | None = None
    pause_after: int | None = 5
    result: outputs.ResultFile | None = None
    metrics: outputs.MetricsTable | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a workspace. `max_requeues`: how often a job is requeued automatically.

    `hosts` are those of dispatcher.yaml and of the file that was given with --hosts.
    `code` is what hosts run that do not see the workspace; the others run what is there.
    `stall_after_s`: a running job that has reported no progress for so long has stalled; None: see run_state/stalls.py.
    """

    layout: Layout
    matrix: Path
    lock: str = "auto"
    # The file that a lab's own script locks while it changes the status file.
    script_lock: Path | None = None
    methods: Mapping[str, Method] = _NOTHING
    poll_interval_s: float = 30.0
    heartbeat_s: float = 2.0
    lost_after_s: float = 600.0
    # Longer than the minute that a job has by default for a last checkpoint.
    kill_grace_s: float = 75.0
    max_requeues: int = 20
    hosts: Hosts = Hosts()
    code: CodeMode = CodeMode.SHIP
    stall_after_s: float | None = None
    gpu_idle: Mapping[str, Any] = _NOTHING
    # Whether it is recorded what attempts run from, and the variables of their environment that belong to that.
    provenance: bool = True
    provenance_env: tuple[str, ...] = RECORDED_VARIABLES
    # Who is told what; None: nobody.
    notify: Notify | None = None
    limits: tuple[RunningLimit, ...] = ()
    # The file of --hosts.
    hosts_file: Path | None = None
    # Why it is not known for certain where the run state is and how it is locked: nothing may be changed there.
    doubtful: str = ""

    def gpu_idle_of(self, method: str) -> GpuIdle:
        """When jobs of a method leave their GPUs idle, and what becomes of them."""
        configured = self.methods.get(method)
        own = None if configured is None else configured.gpu_idle
        if own is None:
            return GpuIdle(**self.gpu_idle)
        fields = {**self.gpu_idle, **own}
        if own and fields.get("after_s") is None and "after_s" not in own:
            # It asks for something that the others are not watched for.
            fields.pop("after_s", None)
        return GpuIdle(**fields)

    def method(self, name: str) -> Method:
        """The configured method, or the default one: `templates/train_<name>.py` run by this interpreter."""
        return self.methods.get(name) or _default_method(self.layout, name)

    def wants_copy(self, method: str, stated: bool | None) -> bool:
        """Whether attempts run a copy of the code: as the entry has `stated` it, else as the method says."""
        return self.method(method).snapshot if stated is None else stated


# Asked for several times at each start and end of an attempt.
@functools.lru_cache(maxsize=256)
def _default_method(layout: Layout, name: str) -> Method:
    return Method(name=name, template=layout.training_template(name))


def _parse_lock(value: object) -> str:
    if value not in LOCK_KINDS:
        raise BadValueError(f"expected one of {', '.join(LOCK_KINDS)}")
    return str(value)


def _parse_positive(value: object) -> int:
    if type(value) is not int or value < 1:
        raise BadValueError("expected a whole number, 1 or more")
    return value


def _parse_max_fails(value: object) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_FAILS:
        raise BadValueError(f"expected a whole number from 1 to {_MOST_FAILS}")
    return value


def _parse_pause_after(value: object) -> int | None:
    """How many jobs; None for `false`. One alone has nothing in common with others."""
    if value is False:
        return None
    if type(value) is not int or not 2 <= value <= _MOST_PAUSE_AFTER:
        raise BadValueError(
            f"expected false, or a whole number from 2 to {_MOST_PAUSE_AFTER}; max_fails: 1 pauses after any failure"
        )
    return value


def _parse_code(value: object) -> CodeMode:
    try:
        return CodeMode(str(value))
    except ValueError:
        raise BadValueError(f"expected one of {', '.join(CodeMode)}") from None


def _parse_switch(value: object) -> bool:
    if type(value) is not bool:
        raise BadValueError("expected true or false")
    return value


def _parse_variables(value: object) -> tuple[str, ...]:
    names = value.split() if isinstance(value, str) else value
    if not isinstance(names, list):
        raise BadValueError("expected names of environment variables such as [XLA_FLAGS, NCCL_*]")
    for name in names:
        if not (isinstance(name, str) and _VARIABLES.fullmatch(name)):
            raise BadValueError(f"{shown(name)} is not the name of a variable, nor its beginning with a *")
        if looks_secret(name):
            raise BadValueError(f"{name} looks like a secret, which is never recorded: remove it")
    return tuple(names)


_Fields = Mapping[str, tuple[str, values.Reader]]

_SETTINGS: Final[_Fields] = {
    "matrix": ("matrix", values.parse_text),
    "status_file": ("status_file", values.parse_text),
    "script_lock": ("script_lock", values.parse_text),
    "lock": ("lock", _parse_lock),
    "poll_interval": ("poll_interval_s", values.parse_duration),
    "heartbeat": ("heartbeat_s", values.parse_duration),
    "lost_after": ("lost_after_s", values.parse_duration),
    "kill_grace": ("kill_grace_s", values.parse_duration),
    "max_requeues": ("max_requeues", values.parse_count),
    "stall_after": ("stall_after_s", values.parse_duration),
    "gpu_idle": ("gpu_idle", values.parse_gpu_idle),
    "code": ("code", _parse_code),
    "provenance": ("provenance", _parse_switch),
    "provenance_env": ("provenance_env", _parse_variables),
    "limits": ("limits", parse_limits),
}
_METHOD_KEYS: Final[_Fields] = {
    "template": ("template", values.parse_text),
    "command": ("command", values.parse_command),
    "setup": ("setup", values.parse_text),
    "python": ("python", values.parse_text),
    "time_limit": ("time_limit_s", values.parse_duration),
    "env": ("env", devices.parse_env),
    "env_file": ("env_file", values.parse_private_path),
    "gpus": ("gpus", values.parse_count),
    "gpu_memory": ("gpu_memory_mib", values.parse_memory),
    "retries": ("retries", values.parse_count),
    "retry_on": ("retry_on", values.parse_retry_on),
    "backoff": ("backoff_s", values.parse_duration),
    "on_lost": ("on_lost", values.parse_on_end),
    "on_preempted": ("on_preempted", values.parse_on_end),
    "resources": ("resources", values.parse_resources),
    "container": ("container", parse_container),
    "slurm": ("slurm", parse_slurm),
    "pbs": ("pbs", parse_pbs),
    "queue_limit": ("queue_limit_s", values.parse_duration),
    "pack": ("pack", _parse_positive),
    "on_move": ("on_move", values.parse_on_move),
    "stall_after": ("stall_after_s", values.parse_duration),
    "gpu_idle": ("gpu_idle", values.parse_gpu_idle),
    "snapshot": ("snapshot", values.parse_flag),
    "max_running": ("max_running", parse_max_running),
    "max_fails": ("max_fails", _parse_max_fails),
    "pause_after": ("pause_after", _parse_pause_after),
    "result": ("result", outputs.parse_result),
    "metrics": ("metrics", outputs.parse_metrics),
}
# Hosts and clusters: dispatcher/hosts/read.py reads them, and is loaded when there are any.
_HOSTS_KEYS: Final = ("clusters", "hosts", "priority", "gres_mapping")
# Read by dispatcher/notify_config.py.
_NOTIFY: Final = "notify"
# What has nothing to do with the run state. A fault elsewhere may be the misspelt name of the status file.
_APART: Final = ("methods", "limits", _NOTIFY, *_HOSTS_KEYS)


def load_config(layout: Layout, hosts_file: Path | None = None) -> Config:
    """The configuration of the workspace; ConfigError lists every fault of dispatcher.yaml at once.

    `hosts_file` has further clusters and hosts, in the same keys. Where both describe one of the same name, that file's
    description is used as a whole; so is its `priority`, and its line of `gres_mapping` for a chip.
    """
    return _read_config(layout, hosts_file, None)


def load_readable(layout: Layout, hosts_file: Path | None, warn: Callable[[str], object]) -> Config:
    """As `load_config`, for what does not depend on all of it: faults are told to `warn`, and count as not set."""

    def tell(text: str) -> None:
        warn(f"what is faulty in the configuration counts as not set: {text}")

    return _read_config(layout, hosts_file, tell)


def _read_config(layout: Layout, hosts_file: Path | None, tell: Callable[[str], object] | None) -> Config:
    try:
        document = _load(layout.config_file)
    except ConfigError as error:
        if tell is None:
            raise
        tell(str(error))
        return Config(layout=layout, matrix=layout.default_matrix, hosts_file=hosts_file, doubtful=str(error))
    if document is None and hosts_file is None:
        return Config(layout=layout, matrix=layout.default_matrix)
    config, faults = _read_settings(layout, document or {})
    others: list[str] = []
    hosts = _hosts(document or {}, faults, hosts_file, others, config.poll_interval_s)
    config = msgspec.structs.replace(config, hosts=hosts, hosts_file=hosts_file)
    wrong = [(layout.config_file, faults), (hosts_file, others)]
    texts = [str(ConfigError.of(path, listed)) for path, listed in wrong if listed]
    if texts and tell is None:
        raise ConfigError("\n".join(texts))
    if texts and tell is not None:
        tell("\n".join(texts))
    doubts = [fault for fault in faults if not fault.startswith(_APART)]
    return msgspec.structs.replace(config, doubtful=str(ConfigError.of(layout.config_file, doubts)) if doubts else "")


def _hosts(
    document: Mapping[Any, Any], faults: list[str], hosts_file: Path | None, others: list[str], poll_interval_s: float
) -> Hosts:
    if hosts_file is None and not any(key in document for key in _HOSTS_KEYS):
        return Hosts()
    from dispatcher.hosts.read import Source, read_hosts

    sources = [Source(document, faults)]
    if hosts_file is not None:
        loaded = _load(hosts_file, "keys such as clusters and hosts")
        if loaded is None:
            raise ConfigError(f"{hosts_file}: there is no such file")
        sources.append(Source(loaded, others, is_own_file=True))
    return read_hosts(sources, poll_interval_s)


def _read_settings(layout: Layout, document: Mapping[Any, Any]) -> tuple[Config, list[str]]:
    """The settings but for the hosts, and the faults in them."""
    faults: list[str] = []
    fields = _read(document, _SETTINGS, "", [*_SETTINGS, "methods", _NOTIFY, *_HOSTS_KEYS], faults)
    fields["matrix"] = layout.root / fields["matrix"] if "matrix" in fields else layout.default_matrix
    layout = _with_status_file(layout, fields.pop("status_file", None), fields["matrix"], faults)
    fields["script_lock"] = _script_lock(layout, fields.get("script_lock"), faults)
    fields["notify"] = _notify(document.get(_NOTIFY), faults)
    config = Config(layout=layout, methods=_methods(layout, document.get("methods"), faults), **fields)
    if config.lost_after_s < 5 * config.heartbeat_s:
        faults.append(
            f"lost_after ({config.lost_after_s:g} s): expected at least five heartbeats of {config.heartbeat_s:g} s, "
            "else live jobs are taken for lost"
        )
    return config, faults


def _notify(value: object, faults: list[str]) -> Notify | None:
    if value is None:
        return None
    from dispatcher.notify_config import parse_notify

    try:
        return parse_notify(value)
    except BadValueError as error:
        faults += _faults(error, value, _NOTIFY)
        return None


def _faults(error: BadValueError, value: object, place: str) -> list[str]:
    from dispatcher.hosts.fields import faults_of

    return [fault.line() for fault in faults_of(error, value, place)]


def _with_status_file(layout: Layout, name: str | None, matrix: Path, faults: list[str]) -> Layout:
    """The layout with the status file at the place that dispatcher.yaml names."""
    if name is None:
        return layout
    # A rename would replace a link by a file, and changes that are written through the link would be lost.
    path = Path(os.path.realpath(layout.root / name))
    if path == Path(os.path.realpath(matrix)):
        faults.append(f"status_file = {name!r}: that is the manifest; name another file, for the states of its jobs")
    elif path.is_dir():
        faults.append(f"status_file = {name!r}: a directory; name the file in it, such as {name}/{STATUS_FILE}")
    elif not path.parent.is_dir():
        faults.append(f"status_file = {name!r}: there is no directory {path.parent}")
    return Layout(layout.root, path)


def _script_lock(layout: Layout, name: str | None, faults: list[str]) -> Path | None:
    """The configured file that a lab's own script locks while it changes the status file."""
    if name is None:
        return None
    path = Path(os.path.realpath(layout.root / name))
    if path == Path(os.path.realpath(layout.lock_file)):
        faults.append(
            f"script_lock = {name!r}: that is the dispatchers' own lock; let your script lock another file, "
            "such as script.lock: change that line of the script, and write `script_lock: script.lock`"
        )
    elif path == layout.status_file:
        faults.append(
            f"script_lock = {name!r}: that is the status file, which is replaced at every change, so two processes "
            "would lock different files; let your script lock a file of its own"
        )
    elif not path.parent.is_dir():
        faults.append(f"script_lock = {name!r}: there is no directory {path.parent}")
    return path


def write_max_running(layout: Layout, method: str, most: int) -> None:
    """Write `max_running` of a method into dispatcher.yaml. Raises ConfigError where the file cannot be changed so."""
    from dispatcher.base import yaml_text

    path = Path(os.path.realpath(layout.config_file))
    load_config(layout)
    by_hand = f"write `max_running: {most}` under `methods: {method}:` by hand"
    try:
        text = files.read_plain(path).decode("utf-8") if path.exists() else ""
        changed = yaml_text.with_number(text, ("methods", method, "max_running"), most)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}: {by_hand}") from None
    with files.storing("writing", path):
        mode = os.stat(path).st_mode & 0o777 if path.exists() else None
        files.replace_file(path, changed.encode())
        if mode is not None:
            os.chmod(path, mode)


def _load(path: Path, expected: str = "keys and values such as matrix: matrix/matrix.json") -> Mapping[Any, Any] | None:
    """The keys of a file; None when there is none."""
    try:
        data = files.read_plain(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    from dispatcher.base import yaml_text

    try:
        return yaml_text.load_mapping(data, expected)
    except ValueError as error:
        raise ConfigError.of(path, [str(error)]) from None


def _methods(layout: Layout, document: object, faults: list[str]) -> dict[str, Method]:
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        faults.append(f"methods = {shown(document)}: expected names of methods, each with its keys")
        return {}
    methods = {}
    for name, keys in document.items():
        place = f"methods.{name}"
        if not values.is_name(name):
            faults.append(f"{place}: the name cannot be used; quote a number, else only letters, digits, '.', '_', '-'")
        elif keys is not None and not isinstance(keys, Mapping):
            faults.append(f"{place} = {shown(keys)}: expected keys such as template, command, time_limit")
        else:
            methods[name] = _method(layout, name, keys or {}, faults)
    return methods


def _method(layout: Layout, name: str, document: Mapping[Any, Any], faults: list[str]) -> Method:
    fields = _read(document, _METHOD_KEYS, f"methods.{name}.", _METHOD_KEYS, faults)
    template = fields.pop("template", None)
    path = layout.root / template if template else layout.training_template(name)
    if "python" in fields:
        fields["python"] = layout.root / os.path.expanduser(fields["python"])
    return Method(name=name, template=path, **fields)


def _read(
    document: Mapping[Any, Any], known: _Fields, place: str, words: Iterable[str], faults: list[str]
) -> dict[str, Any]:
    """The fields that `document` sets; a key without a value counts as unset."""
    fields: dict[str, Any] = {}
    for key, value in document.items():
        if key not in words:
            faults.append(f"{place}{key}: unknown key{nearest(str(key), words)}")
        elif key in known and value is not None:
            field, read = known[key]
            try:
                fields[field] = read(value)
            except BadValueError as error:
                faults += _faults(error, value, f"{place}{key}")
    return fields


@functools.cache
def own_programs() -> str:
    """The directory of the programs of this process's own environment; empty where it is the system's Python."""
    is_own = sys.prefix != sys.base_prefix or os.path.isdir(os.path.join(sys.prefix, "conda-meta"))
    return os.path.join(sys.prefix, "bin") if is_own else ""


def python_environment(method: Method) -> dict[str, str]:
    """The environment in which the interpreter of the method is asked what it can import, as its jobs can."""
    inherited = {
        name: value for name, value in os.environ.items() if method.python is None or name not in PYTHON_PLACES
    }
    return {**inherited, **method.env}


def interpreter(python: Path | None) -> Path:
    """The interpreter for a method's `python`, a file or an environment's directory; it need not exist."""
    if python is None:
        return Path(sys.executable or "python3")
    if python.is_dir():
        return python / "bin" / "python"
    return python
