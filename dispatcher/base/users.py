"""The names of users: who owns a job, and who makes a change."""

from __future__ import annotations

import os
import pwd

from dispatcher.base.host import host_name
from dispatcher.base.messages import readable
from dispatcher.base.values import is_user


def user_name() -> str:
    """The name of this user: that of the login, else that of the account, else its number."""
    for variable in ("LOGNAME", "USER"):
        if is_user(name := readable(os.environ.get(variable, ""))):
            return name
    return name_of(os.getuid())


def user_at_host() -> str:
    """The name under which changes by people are recorded."""
    return f"{user_name()}@{host_name()}"


def user_of(by: str) -> str | None:
    """The user in the name under which a change is recorded; None for that of a pod, and for no name of a user."""
    user, at, _ = by.rpartition("@")
    return user if at and is_user(user) else None


def owner_by(by: str) -> str:
    """Who owns jobs that are added under this name: its user, else this one."""
    return user_of(by) or user_name()


def name_of(uid: int) -> str:
    """The name of an account; its number where this host does not know it, as in a container."""
    try:
        name = readable(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)
    return name if is_user(name) else str(uid)


def has_account(name: str) -> bool:
    """Whether this host knows a user of this name."""
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True
