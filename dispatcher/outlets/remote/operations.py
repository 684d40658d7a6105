"""What the agent on a host is asked to do, and what it answers.

One call of the agent carries any number of operations, which it does in order. Each fails by itself, unless a `Confirm`
comes before it: its answer is then a `Failed`. Every operation may be repeated: an answer that was lost is asked for
again. Paths are absolute paths on the host; `~` and variables are not expanded except by `Hello`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from dispatcher.outlets.remote.agent.names import is_same_place


class Operation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One thing to do on a host. It is not done, but fails, if one of the `only_after` operations before it failed."""

    only_after: int = 0


class Hello(Operation, frozen=True, kw_only=True):
    """Describe the host. `directories` may begin with `~` or have `$VARIABLES`; `programs` are names.

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
    python: str
    programs: Mapping[str, str] = {}
    directories: Mapping[str, str] = {}
    probe: str | None = None


class Run(Operation, frozen=True, kw_only=True):
    """Run a program and wait for it.

    Its environment has no variables of a scheduler's job (SLURM_*, PBS_*) and none that are options of a scheduler's
    programs (SQUEUE_*, SBATCH_* ...), but those that tell where the scheduler is (SLURM_CONF, SLURM_CLUSTERS,
    PBS_SERVER ...) and what a site sets for its users (SBATCH_ACCOUNT ...). `environment` are changes
    to it (None removes one).
    """

    words: Sequence[str]
    stdin: str = ""
    environment: Mapping[str, str | None] = {}
    directory: str = "/"
    timeout_s: float = 60.0


class RunThere(Run, frozen=True, kw_only=True):
    """Run a program where the files are, also where other programs are run on this machine."""


class Confirm(Run, frozen=True, kw_only=True):
    """Run a program that prints where programs are carried out, such as the name of a cluster.

    It prints one word, or several names of the same place, the surest first, with `-` for one that cannot be told now.
    Where it prints another place than `wanted` (None: any), nothing that comes after it in the call is done; where it
    fails, no program is run. What is not done has failed.
    """

    wanted: str | None = None

    def found(self, answer: Ran | Failed) -> str | None:
        """What it has printed; None where it failed."""
        return answer.out.strip() if isinstance(answer, Ran) else None

    def is_elsewhere(self, found: str) -> bool:
        """Whether that is another place than the wanted one."""
        return self.wanted is not None and not is_same_place(found, self.wanted)


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
    """Create a small file such as `superseded` or `stop`, with its directory; one that exists stays as it is."""

    path: str
    content: bytes


class Written(msgspec.Struct, frozen=True, kw_only=True):
    existed: bool = False


# Of what is known of a growing file, so much of its end tells whether the file is still the same.
KNOWN_END: Final = 4096


class AttemptRead(msgspec.Struct, frozen=True, kw_only=True):
    """What to read of one attempt: files that differ from `have` (mtime in ns, size), and what files have grown by.

    `growing` has for each how many bytes of it are known, and the CRC-32 of the last KNOWN_END of these. `paths` are
    files of this attempt beside those that are read of every attempt. All are in its directory or below; but for the
    log, one that cannot be opened is as one that is missing.
    """

    directory: str
    have: Mapping[str, tuple[int, int]] = {}
    growing: Mapping[str, tuple[int, int]] = {}
    paths: Sequence[str] = ()


class Read(Operation, frozen=True, kw_only=True):
    """Read what is new of attempts. `names` are the wanted files, of which those over 1 MiB are left out.

    At most `most_bytes` of all growing files together are read.
    """

    looks: Sequence[AttemptRead]
    names: Sequence[str]
    most_bytes: int = 4 << 20


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """`content` begins at the offset `at` of a file that is `size` long now.

    `at` is 0 for a file that does not begin with what is known: it was truncated or replaced.
    """

    content: bytes = b""
    at: int = 0
    size: int = 0


class AttemptFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one attempt's directory. `grown` has the growing files that exist.

    `is_alive`: whether a process holds the liveness lock, as far as this host can tell; None where locks do not work.
    It is asked before the files are read: a wrapper that was gone then has left its exit status in `files`, or none.
    What is too long to be sent has a stamp and is not in `files`. `unwritten`: the wrapper is writing its exit status,
    and if it takes long, why; empty: it is not. `error` names what could not be read; nothing else is told then.

    Where the attempt runs on several machines, the further ones tell only whether it has begun and ended, and
    `log_end`, the end of its log there, when none of its processes is left.
    """

    exists: bool = True
    files: Mapping[str, bytes] = {}
    stamps: Mapping[str, tuple[int, int]] = {}
    grown: Mapping[str, Grown] = {}
    is_alive: bool | None = None
    unwritten: str = ""
    error: str = ""
    log_end: bytes | None = None


class ReadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `Read`, in the order of its looks."""

    seen: Sequence[AttemptFiles] = ()


class Tail(Operation, frozen=True, kw_only=True):
    """The last bytes of a file."""

    path: str
    most_bytes: int = 4096


class TailRead(msgspec.Struct, frozen=True, kw_only=True):
    """None: there is no such file."""

    content: bytes | None = None


class Launch(Operation, frozen=True, kw_only=True):
    """Start the wrapper of a delivered attempt so that it outlives the connection; it is not waited for.

    `environment` are changes to that of a login without a terminal (None removes a variable). The wrapper starts in
    `root`. `gpus` are as many free GPUs of the host: of those whose index is in `only` (None: any), and of
    the kind `chip` where the host has several `chips`. They stay locked for as long as a process of the attempt lives.
    `log` is where its log is to be, without the end `_<time>.log`: `output.log` in its directory becomes a link to it;
    empty: no link. It may begin with `~` or have variables. `needs_shared_log`: `output.log` is the file, and the other
    one the link.

    `exclusive` is a directory, made for all users of the host, whose file `alive` stays locked for as long as a process
    of the attempt lives: there is no room while another attempt has it. `workers` are all machines that run the
    attempt together, this one among them, each with its addresses, of which the first is for the others: its processes
    are told their number, their count, and the first machine as the place to meet.
    """

    directory: str
    root: str
    environment: Mapping[str, str | None] = {}
    gpus: int = 0
    only: Sequence[int] | None = None
    chip: str = ""
    chips: Sequence[str] = ()
    log: str = ""
    needs_shared_log: bool = False
    exclusive: str = ""
    workers: Sequence[Sequence[str]] = ()


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `Launch`.

    `started`: now; `taken`: a wrapper had it before; `alive`: a process of it lives, started before; `no_room`: too few
    GPUs are free now, or the machine is not, and `why` says by whom they are used.
    """

    outcome: Literal["started", "taken", "alive", "no_room"]
    host: str
    pid: int | None = None
    gpus: tuple[int, ...] = ()
    why: str = ""


class Check(Operation, frozen=True, kw_only=True):
    """Whether attempts that `Launch` has started are alive; they are named by their directories."""

    directories: Sequence[str]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt on its host.

    `is_alive`: a process of it lives; None where that cannot be told from this host, which is not the one that it was
    started on. `was_launched`: it was started, or a wrapper has taken it. `was_taken`: a wrapper has. `has_exit`: it
    has left an exit status.
    `was_rebooted`: its host was started anew since. `pid` is the wrapper's.
    """

    is_alive: bool | None
    was_launched: bool
    was_taken: bool
    has_exit: bool = False
    was_rebooted: bool = False
    host: str = ""
    pid: int | None = None
    gpus: tuple[int, ...] = ()
    error: str = ""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of the directories."""

    attempts: Sequence[Checked] = ()


class Signal(Operation, frozen=True, kw_only=True):
    """Stop an attempt that `Launch` has started: TERM to its wrapper. `force`: KILL to all its processes."""

    directory: str
    force: bool = False


class Signalled(msgspec.Struct, frozen=True, kw_only=True):
    """`count` processes were signalled; 0: none was found on this host."""

    count: int = 0


class ListGpus(Operation, frozen=True, kw_only=True):
    """The GPUs of the host as nvidia-smi shows them."""


class GpuUser(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU; `used_mib` None where the driver does not tell."""

    pid: int
    user: str = ""
    command: str = ""
    used_mib: int | None = None


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`busy` says who uses it (100 MiB or more), or which attempt it was given to; empty: it is free."""

    index: int
    name: str
    uuid: str
    used_mib: int | None = None
    total_mib: int | None = None
    users: Sequence[GpuUser] = ()
    busy: str = ""


class GpuList(msgspec.Struct, frozen=True, kw_only=True):
    gpus: Sequence[GpuInfo] = ()


class Has(Operation, frozen=True, kw_only=True):
    """Which of these files exist. Asking counts as using them, see `Store`."""

    paths: Sequence[str]


class FileSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Their sizes in bytes, None for a missing one; in the order of the paths."""

    sizes: Sequence[int | None] = ()


class Store(Operation, frozen=True, kw_only=True):
    """Write a large file, such as an archive of code; one that exists with this size stays as it is.

    Its content is that of the file `source` of this machine. It appears at `path` when it is complete and its SHA-256
    is as given (hexadecimal digits). `unused_s`: files beside it with the same ending that were not stored or asked
    for in this time are removed; None: none are.
    """

    path: str
    source: str
    size: int
    sha256: str
    umask: int = 0o022
    unused_s: float | None = None


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    existed: bool = False


class Trees(Operation, frozen=True, kw_only=True):
    """What is directly in `directory`, in which `$UID` is the number of the user; nothing where there is none."""

    directory: str


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """`age_s`: for how long nothing was changed directly in it."""

    name: str
    bytes: int
    age_s: float


class TreeList(msgspec.Struct, frozen=True, kw_only=True):
    trees: Sequence[Tree] = ()


class Remove(Operation, frozen=True, kw_only=True):
    """Remove these directories below `directory`, as `Trees` takes it, with all that is in them."""

    directory: str
    names: Sequence[str]


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be removed, and why: lines."""

    failed: Sequence[str] = ()


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The operation failed: `error` names what and where, `errno` is 0 when it was no system call."""

    error: str
    errno: int = 0


# What is answered to each operation, unless it failed.
ANSWERS: Final[Mapping[type[Operation], Any]] = {
    Hello: Greeting,
    Run: Ran,
    RunThere: Ran,
    Confirm: Ran,
    Deliver: Delivered,
    Write: Written,
    Read: ReadAnswer,
    Tail: TailRead,
    Launch: Launched,
    Check: CheckResult,
    Signal: Signalled,
    ListGpus: GpuList,
    Has: FileSizes,
    Store: Stored,
    Trees: TreeList,
    Remove: Removed,
}
