"""What the agent on a host is asked to do, and what it answers.

One call of the agent carries any number of operations, which it does in order. Each fails by itself: its answer is then
a `Failed`. Every operation may be repeated: an answer that was lost is asked for again. Paths are absolute paths on the
host; `~` and variables are not expanded except by `Hello`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Operation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One thing to do on a host."""


class Hello(Operation, frozen=True, kw_only=True):
    """Find out where one has arrived. `directories` may begin with `~` or have `$VARIABLES`; `programs` are names.

    `probe` is a file of the workspace: the host sees the workspace when it reads the same content there.
    """

    programs: Sequence[str] = ()
    directories: Mapping[str, str] = {}
    probe: str = ""


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """`programs` has the path of each that was found. `directories` are expanded. `probe`: the file's content."""

    host: str
    boot_id: str
    user: str
    home: str
    python: str
    programs: Mapping[str, str] = {}
    directories: Mapping[str, str] = {}
    probe: str | None = None


class Run(Operation, frozen=True, kw_only=True):
    """Run a program and wait for it; its environment has no variables of a scheduler's job but SLURM_CONF."""

    words: Sequence[str]
    stdin: str = ""
    environment: Mapping[str, str] = {}
    directory: str = "/"
    timeout_s: float = 60.0


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """`exit_code` None: it was killed when its time was over. -N: killed by signal N."""

    exit_code: int | None
    out: str = ""
    err: str = ""


class Deliver(Operation, frozen=True, kw_only=True):
    """Write the files of an attempt, each atomically, into `directory`, which is created.

    Nothing is written when the attempt was taken by a wrapper before. `shared` are files by absolute path. `links` are
    symbolic links in the directory. Names in `executable` get execute permission. `umask` is for all that is created.
    """

    directory: str
    files: Mapping[str, bytes]
    shared: Mapping[str, bytes] = {}
    links: Mapping[str, str] = {}
    executable: Sequence[str] = ()
    umask: int = 0o022


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """`was_taken`: a wrapper has the attempt already, and its files stay as they are."""

    was_taken: bool = False


class Write(Operation, frozen=True, kw_only=True):
    """Create a small file such as `superseded` or `stop`; one that exists stays as it is."""

    path: str
    content: bytes


class Written(msgspec.Struct, frozen=True, kw_only=True):
    existed: bool = False


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What of one attempt's directory is wanted: files that are not as `have` says (mtime in ns, size), and the log.

    `log_at` is how much of the log is there already; None: the log is not wanted.
    """

    directory: str
    have: Mapping[str, tuple[int, int]] = {}
    log_at: int | None = None


class Read(Operation, frozen=True, kw_only=True):
    """Read what is new of attempts. `names` are the wanted files; at most `most_bytes` of all logs together."""

    looks: Sequence[Look]
    names: Sequence[str]
    most_bytes: int = 4 << 20


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one attempt's directory. `log` begins at the asked offset, and `log_size` is how long it is now.

    A log that has become shorter is sent from its beginning, and `log_at` is 0. `is_alive`: whether a process holds the
    liveness lock, as far as this host can tell; None where locks do not work.
    """

    exists: bool = True
    files: Mapping[str, bytes] = {}
    stamps: Mapping[str, tuple[int, int]] = {}
    log: bytes = b""
    log_at: int = 0
    log_size: int = 0
    is_alive: bool | None = None


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `Read`, in the order of its looks."""

    seen: Sequence[Seen] = ()


class Tail(Operation, frozen=True, kw_only=True):
    """The last bytes of a file."""

    path: str
    most_bytes: int = 4096


class TailRead(msgspec.Struct, frozen=True, kw_only=True):
    """None: there is no such file."""

    content: bytes | None = None


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The operation failed: `error` names what and where, `errno` is 0 when it was no system call."""

    error: str
    errno: int = 0
