"""Boots a bed once and does in it what its tests take for granted: `scripts/install-beds` runs this for each.

python -m beds.trials nfs       # from tests/; ends with 1, and one line that says why, where the bed does not work
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from .bed import BedError, one_line, plain_directory


def _nfs() -> None:
    from .nfs import NfsBed

    with NfsBed() as bed:
        _shared(*bed.hosts())


def _sshfs() -> None:
    from .sshfs import SshfsBed

    with SshfsBed() as bed:
        _shared(*bed.hosts())


def _gluster() -> None:
    from .gluster import GlusterBed

    with GlusterBed() as bed:
        _shared(*bed.hosts("defaults"))


def _lockfs() -> None:
    from .lockfs import LockfsBed

    with LockfsBed() as bed:
        _shared(*bed.hosts("pass"))


def _shared(a, b) -> None:
    a.write_text("file", "x")
    if b.read_text("file") != "x":
        raise BedError("one host does not see what the other has written")


def _guest() -> None:
    from .guest import run_in_guest

    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        print("print('ready')", file=script, flush=True)
        done = run_in_guest(Path(script.name))
    if done.status != 0:
        raise BedError(f"the kernel did not come to its end:\n{done.log}")


def _slurm() -> None:
    from .slurm import SlurmBed

    with SlurmBed():
        pass


def _slurm_accounting() -> None:
    from .slurm import SlurmBed, SlurmSettings

    with SlurmBed(SlurmSettings(accounting=True)):
        pass


def _sshd() -> None:
    from .sshd import SshBed

    with SshBed(["h1"]) as bed:
        done = bed.ssh("h1", "true")
    if done.returncode != 0:
        raise BedError(f"ssh: {done.stderr.strip()}")


def _k8s() -> None:
    from .k8s import K8sBed

    with K8sBed():
        pass


def _volcano() -> None:
    from .volcano import VolcanoBed

    with VolcanoBed():
        pass


def _tpu() -> None:
    from .tpu import TpuBed

    with TpuBed() as bed:
        bed.create("trial")


def _podman() -> None:
    from podman_here import IMAGE, Podman

    with tempfile.TemporaryDirectory(prefix="pod-", dir=plain_directory()) as folder:
        podman = Podman(Path(folder, "p"))
        try:
            podman("run", "--rm", "--network=none", IMAGE, "true")
        finally:
            podman.close()


def _browser() -> None:
    from chromium_here import CHROMIUM, FLAGS

    with tempfile.TemporaryDirectory(prefix="browser-") as folder:
        words = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "--dump-dom", "about:blank"]
        done = subprocess.run(words, env={**os.environ, "HOME": folder}, capture_output=True, text=True, check=False)
    if "<html>" not in done.stdout:
        raise BedError(f"Chromium shows nothing:\n{done.stderr}")


# For a bed that is not here it is enough that its programs are there.
TRIALS: dict[str, Callable[[], None]] = {
    "volcano": _volcano,
    "k8s": _k8s,
    "slurm-accounting": _slurm_accounting,
    "slurm": _slurm,
    "gluster": _gluster,
    "nfs": _nfs,
    "tpu": _tpu,
    "podman": _podman,
    "guest": _guest,
    "browser": _browser,
    "sshfs": _sshfs,
    "lockfs": _lockfs,
    "sshd": _sshd,
}


def main() -> None:
    try:
        TRIALS[sys.argv[1]]()
    except Exception as error:  # noqa: BLE001 - whatever keeps a bed from booting is the line that people see
        sys.exit(one_line(error))


if __name__ == "__main__":
    main()
