"""What the kernel of this host knows about an NFS server: how often it has connected to it, how long leases last.

A server that restarts has no locks until its clients have reclaimed theirs, for which it gives them a grace period. A
client that misses it (the server restarts twice, the network is slow) loses its locks although its processes are
alive. The kernel does not report a restart, but every restart breaks the connections. psutil knows nothing of this.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

import msgspec

# The default of Linux servers and most others, for NFSv3, where the client does not know it.
USUAL_LEASE_S: Final = 90.0
_STATISTICS: Final = Path("/proc/self/mountstats")


class Server(msgspec.Struct, frozen=True):
    """`connections` rises whenever this host connects again."""

    connections: int
    lease_s: float


def server_of(point: str) -> Server | None:
    """The server of the filesystem that is mounted at `point`; None when that is not NFS."""
    with contextlib.suppress(OSError):
        return parse(_STATISTICS.read_text(encoding="utf-8", errors="surrogateescape"), point)
    return None


def parse(statistics: str, point: str) -> Server | None:
    """As `server_of`, from the text of /proc/self/mountstats."""
    # The kernel escapes blanks in names; a later mount on the same point hides the earlier one.
    escaped = "".join(f"\\{ord(letter):03o}" if letter in " \t\n\\" else letter for letter in point)
    for section in reversed(re.split(r"^device ", statistics, flags=re.MULTILINE)):
        head, _, rest = section.partition("\n")
        if re.search(rf" mounted on {re.escape(escaped)} with fstype nfs4? ", f"{head} "):
            # After the protocol: the port, how often it was bound, how often it was connected.
            connections = re.findall(r"^\s*xprt:\s+(?:tcp|rdma|local) \d+ \d+ (\d+) ", rest, re.MULTILINE)
            lease = re.search(r"\blease_time=(\d+)", rest)
            return Server(sum(map(int, connections)), float(lease[1]) if lease else USUAL_LEASE_S)
    return None
