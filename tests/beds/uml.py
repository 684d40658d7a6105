"""User-mode Linux: a kernel as a process of this machine, whose root is this machine's, read-only.

The beds `nfs` and `guest` boot such kernels. Theirs (6.1) dies at its first process on a processor with AMX, unless
`xstate.c` is preloaded, which is compiled where that is so.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess

from .needs import HERE, SEARCH_PATH

# What user-mode Linux 6.1 sends of a process's extended registers: as much as there was before AMX.
SENT_BYTES = 2696
PTRACE_ATTACH, PTRACE_GETREGSET, NT_X86_XSTATE = 16, 0x4204, 0x202


def kernel(name: str, init: str, folder: str, memory: str, *options: str) -> list[str]:
    """The words that boot it. A kernel's command line cannot carry blanks, so no path may have one."""
    return [
        "linux.uml",
        f"mem={memory}",
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"),
        *("con=null", "con0=null,fd:1", "ssl=null"),
        f"init={init}",
        f"uml_dir={folder}/uml",
        f"umid={name}",
        *options,
    ]


def environment(folder: str, seen_as: str | None = None) -> dict[str, str]:
    """What the kernel finds in its environment. `folder`, which it sees as `seen_as`, takes its memory, a file, and
    what has to be compiled for it."""
    seen_as = seen_as or folder
    preloaded = {}
    if registers_bytes() > SENT_BYTES:
        compile_library(f"{folder}/xstate.so")
        preloaded = {"LD_PRELOAD": f"{seen_as}/xstate.so"}
    return {"PATH": SEARCH_PATH, "TMPDIR": seen_as, **preloaded}


def compile_library(path: str, source: str = f"{HERE}/xstate.c") -> None:
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, source], env={"PATH": SEARCH_PATH}, check=True)


@functools.cache
def registers_bytes() -> int:
    """How much this machine's kernel saves and wants of a process's extended registers; 0 where it does not tell."""
    buffer = ctypes.create_string_buffer(1 << 16)
    registers = Vector(ctypes.addressof(buffer), len(buffer))
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as traced:
        if ptrace(PTRACE_ATTACH, traced.pid, None, None) == 0:
            os.waitpid(traced.pid, 0)
            failed = ptrace(PTRACE_GETREGSET, traced.pid, NT_X86_XSTATE, ctypes.addressof(registers))
        else:
            failed = -1
        traced.kill()
    return 0 if failed else registers.length


class Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
