"""Processes that are forked, but never from the one that runs the tests: that one may have JAX's threads.

They are forked from a server that has imported the tests' modules and nothing that starts threads. What they run must
be a function of a module, and its arguments must be picklable.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any


def begin(function: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Run `function` in a process of its own."""
    process = _server().Process(target=function, args=arguments)
    process.start()
    return process


def run(function: Callable[..., object], *arguments: Any) -> int:
    """Run `function` in a process of its own; its exit status, which is 1 when it raises."""
    return end(begin(function, *arguments))


def end(process: BaseProcess) -> int:
    """Wait for the end of a process; its exit status."""
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def barrier(parties: int) -> Barrier:
    """Passed to so many processes, it holds each up until all of them are there."""
    return _server().Barrier(parties)


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    # It imports from the directory in which it starts, and the test that is the first to fork may be in another one.
    with contextlib.chdir(Path(__file__).parent.parent):
        forkserver.ensure_running()
    return context
