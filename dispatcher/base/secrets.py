"""Files with secrets: passwords and addresses. Only their owner may read them, and no message has a word of them."""

from __future__ import annotations

import os
import stat
from typing import Final

_MOST: Final = 65536


class SecretError(Exception):
    """A file with a secret cannot be used; the message says which and what to do."""


def read_secret(path: str) -> str:
    """The content of a file that only its owner, this user, can read, without the newline at its end."""
    where = os.path.expanduser(path)
    try:
        fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecretError(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise SecretError(f"{path} is no file")
        if found.st_uid not in (os.getuid(), 0):
            raise SecretError(f"{path} belongs to another user: make a file of your own")
        if found.st_mode & 0o077:
            raise SecretError(f"{path} can be read by others: `chmod 600 {path}`")
        data = os.read(fd, _MOST)
    except OSError as error:
        raise SecretError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SecretError(f"{path} is not UTF-8") from None
    if not text.strip():
        raise SecretError(f"{path} is empty")
    return text


def read_line(path: str) -> str:
    """As `read_secret`, for one line."""
    text = read_secret(path)
    if len(text.splitlines()) != 1:
        raise SecretError(f"{path} has more than one line")
    return text.strip()
