"""Checks of the configured hosts: whether each can be reached, and has what attempts need there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

from dispatcher.base import files
from dispatcher.base.messages import counted
from dispatcher.config import Config
from dispatcher.doctor import vm_checks, volcano_checks
from dispatcher.doctor.context import Context
from dispatcher.doctor.findings import OK, WARNING, WRONG, Finding, Findings
from dispatcher.errors import DispatcherError
from dispatcher.hosts.types import AnyHost, Host, TpuHost, VolcanoHost
from dispatcher.outlets.kinds import limit_s, make_scheduler, make_transport
from dispatcher.outlets.remote.asking import ask_all
from dispatcher.outlets.remote.connection import NoAnswer
from dispatcher.outlets.remote.operations import Failed, Greeting, Hello, Operation, Ran, Run
from dispatcher.outlets.remote.transport import Transport
from dispatcher.outlets.tpu.projects import with_project

_TIMEOUT_S: Final = 30.0
# What attempts need on every host.
_PROGRAMS: Final = ("bash", "tar", "sha256sum", "flock", "setsid")
_DIRECTORIES: Final = ("root", "work", "log", "share", "data", "checkpoints", "results")
# Prints the nearest directory that exists, whether it can be written to, and its free KiB; it creates nothing.
_ROOM: Final = """
path=$1
while [ ! -e "$path" ]; do path=$(dirname -- "$path"); done
[ -w "$path" ] && echo yes || echo no
df -Pk -- "$path" | tail -n 1 | awk '{print $4}'
echo "$path"
"""
_LITTLE_ROOM_KIB: Final = 1 << 20


def hosts(context: Context) -> Findings:
    """All configured hosts, asked at the same time."""
    config = context.config
    if not isinstance(config, Config):
        return
    yield Finding("hosts", OK, f"{counted(len(config.hosts.hosts), 'host')} configured")
    for line in config.hosts.unused:
        yield Finding("hosts", WARNING, line)
    able = yield from _look_from_here(config)
    questions = {}
    for host in list(able):
        try:
            questions[host.name] = _transport(config, host), _questions(config, host)
        except DispatcherError as error:
            able.remove(host)
            yield Finding(f"host {host.name}", WRONG, str(error))
    outcomes = ask_all(questions, limit_s(able, _TIMEOUT_S))
    for host in able:
        outcome = outcomes[host.name]
        if isinstance(outcome, NoAnswer):
            target = getattr(host, "ssh", None)
            cure = f"`ssh {target} true` must work without a question" if target else "see the message"
            yield Finding(f"host {host.name}", WRONG, outcome.why, cure)
        else:
            yield from _judge(config, host, outcome)


def _look_from_here(config: Config) -> Generator[Finding, None, list[AnyHost]]:
    """What gcloud and kubectl tell without being on a host; the hosts on which something can be asked."""
    able = list(config.hosts.in_order())
    machines = [host for host in able if isinstance(host, TpuHost)]
    yield from vm_checks.other_projects(config, machines)
    machines = [with_project(host, config.layout) for host in machines]
    found = vm_checks.look(config, machines)
    yield from vm_checks.vms(config, machines, found)
    yield from vm_checks.created(config, machines)
    away = {name for name, vm in found.items() if not vm_checks.is_reachable(vm)}
    queues = [host for host in able if isinstance(host, VolcanoHost)]
    told = volcano_checks.look(config, queues)
    yield from volcano_checks.clusters(config, queues, told)
    away |= {host.name for host in queues if not volcano_checks.can_have_helpers(host, told[host.name])}
    return [host for host in able if host.name not in away]


def _transport(config: Config, host: AnyHost) -> Transport:
    if isinstance(host, VolcanoHost):
        return volcano_checks.transport_to_volume(config, host)
    return make_transport(host, config, "doctor")


def _programs(config: Config, host: AnyHost) -> tuple[str, ...]:
    """What the scheduler needs where this host's files are."""
    return () if isinstance(host, VolcanoHost) else tuple(make_scheduler(host, config).programs)


def _questions(config: Config, host: AnyHost) -> list[Operation]:
    programs = (*_PROGRAMS, *_programs(config, host))
    if isinstance(host, TpuHost):
        return [Hello(programs=programs, probe=str(config.layout.id_file))]
    hello = Hello(programs=programs, probe=str(config.layout.id_file))
    versions = [Run(words=[program, "--version"], timeout_s=10) for program in _programs(config, host)[:1]]
    room = [Run(words=["sh", "-c", _ROOM, "sh", path], timeout_s=10) for _, path in _directories(config, host)]
    return [hello, *versions, *room]


def _directories(config: Config, host: Host) -> list[tuple[str, str]]:
    if isinstance(host, TpuHost):
        # Its disk is its own, and new with every VM.
        return []
    cluster = config.hosts.cluster_of(host)
    volume = [("volume", host.pvc_mount_path)] if isinstance(host, VolcanoHost) else []
    found = [(name, path) for name in _DIRECTORIES if (path := getattr(cluster, name)) is not None]
    # Those with `~` or variables are expanded by the host when it is used.
    return volume + [(name, path) for name, path in found if path.startswith("/") and "$" not in path]


def _judge(config: Config, host: AnyHost, answers: Sequence[Any]) -> Findings:
    name = f"host {host.name}"
    greeting, *rest = answers
    if isinstance(greeting, Failed):
        yield Finding(name, WRONG, greeting.error)
        return
    assert isinstance(greeting, Greeting)
    wanted = _programs(config, host)
    missing = [program for program in (*_PROGRAMS, *wanted) if program not in greeting.programs]
    # A helper with an image of its own tells nothing of what attempts find.
    is_seen = not isinstance(host, VolcanoHost) or host.helper_image in (None, host.image)
    if missing and is_seen:
        cure = "they must be on PATH of a session without a terminal: see ~/.bashrc there"
        if isinstance(host, VolcanoHost):
            cure = f"the image of the attempts, {host.image}, must have them"
        yield Finding(name, WRONG, f"no {', '.join(missing)} on PATH of {greeting.user}@{greeting.host}", cure)
    versions, room = rest[: len(wanted[:1])], rest[len(wanted[:1]) :]
    told = [one.out.strip().partition("\n")[0] for one in versions if isinstance(one, Ran) and one.exit_code == 0]
    known = "".join(f", {version}" for version in told)
    sees = _sees(config, greeting)
    yield Finding(name, OK, f"{greeting.user}@{greeting.host}, Python {greeting.python}{known}{sees}")
    for (key, path), answer in zip(_directories(config, host), room, strict=True):
        yield from _judge_room(f"{name} {key}", path, answer)


def _sees(config: Config, greeting: Greeting) -> str:
    try:
        own = files.read_fresh(config.layout.id_file)
    except OSError:
        own = None
    if own is None or greeting.probe is None:
        return "" if own is None else "; does not see the workspace"
    return "; sees the workspace" if greeting.probe == own.decode(errors="replace") else "; has another workspace there"


def _judge_room(name: str, path: str, answer: Any) -> Findings:
    if not isinstance(answer, Ran) or answer.exit_code != 0:
        why = answer.error if isinstance(answer, Failed) else answer.err.strip() or "no answer within 10 s"
        yield Finding(name, WRONG, f"{path}: {why}")
        return
    may_write, free_kib, nearest = answer.out.splitlines()[:3]
    if may_write != "yes":
        yield Finding(name, WRONG, f"{path}: {nearest} cannot be written to", f"chmod or chown {nearest} on the host")
    elif free_kib.isdigit() and int(free_kib) < _LITTLE_ROOM_KIB:
        yield Finding(name, WARNING, f"{path}: {int(free_kib) >> 10} MiB free")
    else:
        yield Finding(name, OK, path)
