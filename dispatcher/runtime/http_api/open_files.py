"""How many files this process may open: each request that is in flight has a connection."""

from __future__ import annotations

import resource
from typing import Final

from dispatcher.errors import ConfigError

# What a process has open beside its connections: libraries, logs, files of responses.
_OTHERS: Final = 200


def allow_connections(count: int) -> None:
    """Raise the limit of open files as far as `count` connections need; ConfigError where that is not allowed."""
    needed = count + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"api.concurrency = {count}: this process may open {hard} files (`ulimit -Hn`), and {_OTHERS} are no "
            f"connections: expected at most {max(1, hard - _OTHERS)}, or a higher limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
