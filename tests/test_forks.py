"""Forking and JAX's threads are kept in different processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest


def with_jax() -> None:
    """Exits with 7 where JAX is imported, with 8 where this process has more than one thread."""
    if "jax" in sys.modules:
        os._exit(7)
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(8)


def with_test_modules() -> None:
    """Exits with 9 where the module that forks most often would be imported anew."""
    if "tests.run_state.test_crash" not in sys.modules:
        os._exit(9)


def fails() -> None:
    raise ValueError("on purpose")


def test_what_is_forked_has_neither_jax_nor_threads() -> None:
    assert forks.run(with_jax) == 0


def test_what_is_forked_has_imported_what_it_runs() -> None:
    assert forks.run(with_test_modules) == 0


def test_it_has_also_where_the_first_test_that_forks_is_in_another_directory(tmp_path: Path) -> None:
    tests = Path(__file__).parent
    script = f"import sys; sys.path[:0] = [{str(tests.parent)!r}, {str(tests)!r}]; import forks, test_forks"
    script += "; sys.exit(forks.run(test_forks.with_test_modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert done.returncode == 0


def test_an_error_is_an_exit_status(capfd: pytest.CaptureFixture[str]) -> None:
    assert forks.run(fails) == 1


def test_a_test_that_forks_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"os.fork in the process that runs the tests"):
        os.fork()
    with pytest.raises(pytest.fail.Exception, match=r"Use commands.Popen"):
        os.forkpty()
