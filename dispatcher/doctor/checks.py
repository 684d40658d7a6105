"""What `dispatcher doctor` checks: the list, and how it is run. A new check of one host is a line of CHECKS.

A check is a function from a Context to findings. It changes nothing, and reports failures by raising DispatcherError or
OSError, or with a finding that says how to cure them. Checks that need a second host are listed in two_hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.config import Config, load_config
from dispatcher.doctor import host_checks, outlet_checks, workspace_checks
from dispatcher.doctor.context import Context
from dispatcher.doctor.findings import WRONG, Finding, Findings
from dispatcher.doctor.lock_checks import check_locks
from dispatcher.doctor.meeting import meet, meeting_place
from dispatcher.doctor.two_hosts import not_proved, prove_together
from dispatcher.errors import DispatcherError
from dispatcher.run_state.lock_choice import AUTO
from dispatcher.workspace import Layout

CHECKS: Final[tuple[tuple[str, Callable[[Context], Findings]], ...]] = (
    ("python", host_checks.python),
    ("bash", host_checks.bash),
    ("flock program", host_checks.flock_program),
    ("processes", host_checks.processes),
    ("gpus", host_checks.gpus),
    ("config", workspace_checks.config),
    ("manifest", workspace_checks.manifest),
    ("submitted", workspace_checks.submitted),
    ("permissions", workspace_checks.permissions),
    ("disk space", workspace_checks.disk_space),
    ("journal", workspace_checks.journal),
    ("attempts", workspace_checks.attempts),
    ("results", workspace_checks.results),
    ("status file", workspace_checks.status_file),
    ("pods", workspace_checks.pods),
    ("mount", workspace_checks.mount),
    ("hosts", outlet_checks.hosts),
)
# sshfs and other FUSE filesystems may show old names for this long.
_FUSE_WAIT_S: Final = 30.0
_WAIT_S: Final = 10.0


def examine(
    layout: Layout, peer_wait_s: float | None, log: Callable[[str], None], hosts_file: Path | None = None
) -> list[Finding]:
    """All checks of this host, and with a doctor of another host if one starts within `peer_wait_s`.

    None waits as long as the filesystem may need, or not at all where no other host can see it. `hosts_file` has
    further hosts to check.
    """
    config: Config | DispatcherError
    wanted = AUTO
    try:
        config = load_config(layout, hosts_file)
        layout, wanted = config.layout, config.lock
    except DispatcherError as error:
        config = error
    found = check_host(Context(layout, config))
    if peer_wait_s is None:
        mount = mount_of(layout.root)
        peer_wait_s = 0.0 if not mount.is_network else _FUSE_WAIT_S if "fuse" in mount.fstype else _WAIT_S
    try:
        # Also a full disk is a finding: it must not hide those of this host.
        with files.storing("testing locks in", layout.run_state), meeting_place(layout) as place:
            found += check_locks(layout, place, wanted)
            meeting = meet(place, peer_wait_s, log)
            found += prove_together(meeting, layout, wanted) if meeting else not_proved(layout, peer_wait_s)
    except DispatcherError as error:
        found.append(Finding("locks", WRONG, str(error)))
    return found


def check_host(context: Context) -> list[Finding]:
    """What one host can find out alone."""
    found: list[Finding] = []
    for name, check in CHECKS:
        try:
            found += check(context)
        except DispatcherError as error:
            found.append(Finding(name, WRONG, str(error)))
        except OSError as error:
            found.append(Finding(name, WRONG, str(files.storage_error(error, "checking", context.layout.run_state))))
    return found
