"""A submission that is under way on a login node when its dispatcher dies, and that gets through much later."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from beds.slurm import SlurmBed
from beds.sshd import SshBed
from fleet import wait_until
from outlets.places import Place

from dispatcher.hosts.types import Cluster, SlurmHost
from dispatcher.outlets.base import NOT_REACHED, Ended, Outlet, Request, Slot
from dispatcher.outlets.context import BatchTimes

# A controller that is slow: the program has been called, and the job is accepted when the file `accept` is there.
SLOW_SBATCH = """#!/bin/bash
touch {folder}/called
until [[ -e {folder}/accept ]]; do sleep 0.05; done
exec /usr/bin/sbatch "$@"
"""


class LoginPlace(Place):
    """A cluster behind a login node; neither that nor its compute nodes see the workspace."""

    times = BatchTimes(absent_s=-1.0)

    def __init__(self, root: Path, slurm: SlurmBed) -> None:
        self.node_names = slurm.node_names
        self.base = slurm.directory / "work"
        super().__init__(root, [partial(SlurmHost, name="hpc", cluster="lab", ssh="login")])
        self.working = Path(self.outlet.site(Slot(), Request(0)).layout.root)
        self.working.mkdir(parents=True, exist_ok=True)

    def restarted(self, pod: str = "pod") -> Outlet:
        cluster = Cluster(name="lab", root=os.fspath(self.base))
        hosts = msgspec.structs.replace(self.config.hosts, clusters={"lab": cluster})
        self.config = msgspec.structs.replace(self.config, hosts=hosts)
        return super().restarted(pod)


def test_the_mark_is_on_the_host_before_the_job_can_be_claimed_again(
    start_slurm: Callable[..., SlurmBed],
    start_ssh: Callable[..., SshBed],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = start_slurm()
    ssh = start_ssh(["login"], shared=[slurm.directory], env=slurm.env)
    monkeypatch.setenv("DISPATCHER_SSH_CONFIG", os.fspath(ssh.config))
    ssh["login"].install("sbatch", SLOW_SBATCH.format(folder=slurm.directory))
    place = LoginPlace(tmp_path / "workspace", slurm)
    try:
        key = place.submit("a", "echo begun >>begun; sleep 600")
        # From then on its dispatcher does nothing any more.
        wait_until((slurm.directory / "called").exists, "the job is being submitted")
        mark = Path(place.directory(key)) / "superseded"
        other = place.restarted("other")
        orphan = place.orphan(key)

        def is_marked_here() -> bool:
            assert not isinstance(other.recover([orphan])[key].status, Ended)
            return place.paths(key).superseded.exists()

        wait_until(is_marked_here, "the other dispatcher gives it up")
        with ssh["login"].away():
            for _ in range(20):
                assert mark.exists() or not isinstance(other.recover([orphan])[key].status, Ended)
        ended = place.recover(other, orphan)
        assert ended.exit_reason == NOT_REACHED
        assert mark.exists()
        (slurm.directory / "accept").touch()
        shown = partial(slurm.run, "squeue", "-h", "--states=all", "--Format=State:20")
        wait_until(lambda: "COMPLETED" in shown().stdout or "FAILED" in shown().stdout, "the job has come to its end")
        assert place.begun() == []
    finally:
        place.close()
