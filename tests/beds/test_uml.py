"""User-mode kernels on processors whose register state is larger than these kernels know."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .bed import plain_directory
from .fixtures import skip_without
from .guest import run_in_guest
from .uml import compile_library, registers_bytes

# Sets the beginning of a process's extended registers: the legacy part and the header, without what AVX added.
SET_THE_BEGINNING = """
import atexit, ctypes, errno, os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from beds.uml import NT_X86_XSTATE, PTRACE_ATTACH, PTRACE_GETREGSET, Vector
PTRACE_SETREGSET, XMM0, HEADER, YMM0 = 0x4205, 160, 512, 576
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]

def exchange(request, registers, length):
    vector = Vector(ctypes.addressof(registers), length)
    if ptrace(request, traced.pid, NT_X86_XSTATE, ctypes.addressof(vector)):
        sys.exit(errno.errorcode[ctypes.get_errno()])
    return vector.length

traced = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
atexit.register(traced.kill)
assert ptrace(PTRACE_ATTACH, traced.pid, None, None) == 0
os.waitpid(traced.pid, 0)
registers = ctypes.create_string_buffer(1 << 16)
whole = exchange(PTRACE_GETREGSET, registers, len(registers))
registers[HEADER] = ord(registers[HEADER]) | 0b111
registers[YMM0 : YMM0 + 16] = b"y" * 16
exchange(PTRACE_SETREGSET, registers, whole)
registers[XMM0 : XMM0 + 16] = b"x" * 16
registers[YMM0 : YMM0 + 16] = b"z" * 16
exchange(PTRACE_SETREGSET, registers, YMM0)
assert exchange(PTRACE_GETREGSET, registers, len(registers)) == whole
print(registers[XMM0 : XMM0 + 16], registers[YMM0 : YMM0 + 16])
"""
# A kernel as on a processor with AMX, as far as its tracers see it.
LARGE_REGISTERS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
enum { BYTES = 11008 };
long ptrace(int request, int pid, void *what, struct iovec *registers)
{
    long (*next)(int, int, void *, void *) = dlsym(RTLD_NEXT, "ptrace");
    if (request == 0x4205 && registers->iov_len < BYTES) {
        errno = EFAULT;
        return -1;
    }
    size_t wanted = request == 0x4204 ? registers->iov_len : 0;
    long result = next(request, pid, what, registers);
    if (wanted && !result) {
        size_t length = wanted < BYTES ? wanted : BYTES;
        memset((char *)registers->iov_base + registers->iov_len, 0, length - registers->iov_len);
        registers->iov_len = length;
    }
    return result;
}
"""


@pytest.fixture
def folder() -> Iterator[str]:
    """LD_PRELOAD cannot carry a path with blanks."""
    skip_without("guest")
    with tempfile.TemporaryDirectory(dir=plain_directory()) as made:
        yield made


@pytest.fixture
def library(folder: str) -> str:
    compile_library(f"{folder}/xstate.so")
    return f"{folder}/xstate.so"


def set_the_beginning(**env: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", SET_THE_BEGINNING, str(Path(__file__).parents[1])]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_registers_that_were_not_sent_stay_as_they_are(library: str) -> None:
    if registers_bytes() <= 576:
        pytest.skip("this processor has no AVX: no set of its registers is too short")
    assert set_the_beginning().stderr == "EFAULT\n", "what the kernel says without the library"
    done = set_the_beginning(LD_PRELOAD=library)
    assert (done.stdout, done.stderr) == (f"{b'x' * 16} {b'y' * 16}\n", "")


def test_a_kernel_boots_where_the_registers_are_larger_than_it_knows(library: str, folder: str) -> None:
    emulated, source, script = (Path(folder, name) for name in ("large_registers.so", "large_registers.c", "script.py"))
    source.write_text(LARGE_REGISTERS)
    compile_library(str(emulated), str(source))
    script.write_text("import math\nprint(math.sqrt(2))\n")
    refused = run_in_guest(script, preload=str(emulated))
    assert refused.status is None
    assert "ptrace set fp regs failed, errno = 14" in refused.log
    assert run_in_guest(script, preload=f"{library}:{emulated}") == (0, "1.4142135623730951\n")
