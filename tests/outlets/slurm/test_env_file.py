"""`env_file` of jobs of SLURM, as an ordinary user: read on the node, seen nowhere else, and checked."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.slurm import ORDINARY, SlurmBed
from fleet import shell, wait_until
from outlets.slurm.test_end_to_end import CONFIG, Lab
from secrets_seen import command_lines_with, files_with


def test_secrets_stay_in_their_file(start_slurm: Callable[..., SlurmBed], monkeypatch: pytest.MonkeyPatch) -> None:
    bed = start_slurm()
    monkeypatch.setenv("SLURM_CONF", str(bed.conf))
    lab = Lab(bed, ORDINARY, CONFIG)
    secret = secrets.token_hex(12)
    folder = Path(bed.directory, "home")
    folder.mkdir()

    def put(name: str, user: str, mode: int) -> str:
        path = folder / name
        path.write_text(f"TOKEN={secret}\n")
        path.chmod(mode)
        shutil.chown(path, user)
        return os.fspath(path)

    good = put("good", ORDINARY, 0o600)
    of_root = put("of_root", "root", 0o644)
    open_to_all = put("open", ORDINARY, 0o640)
    script = f'[[ $TOKEN == "$(cut -d= -f2 {good})" ]] && echo same; echo begun; exec sleep 600'
    entries = [shell("good", script, gpus=0, env_file=good)]
    entries += [shell(job, "true", gpus=0, env_file=path) for job, path in (("root", of_root), ("open", open_to_all))]
    lab.write_manifest(entries)
    pod = lab.start("hpc", "--outlet", "hpc", "--slots", "8", poll="0.5")
    try:
        lab.wait_for("good", "running")
        log = lab.attempt("good").log
        wait_until(lambda: log.exists() and "begun" in log.read_text(), "it has read the file")
        assert lab.output("good") == "same\nbegun\n"
        assert lab.wait_for("root", "failed").reason == "setup"
        assert lab.wait_for("open", "failed").reason == "setup"
        assert "it belongs to user 0, and the job runs as user" in lab.output("root")
        assert "others can read or change it (mode 640): chmod 600 it" in lab.output("open")
        handle = lab.record("good").handle
        assert handle
        shown = bed.run("scontrol", "show", "job", "--details", handle).stdout
        shown += bed.run("scontrol", "write", "batch_script", handle, "-").stdout
        assert good not in shown
        assert secret not in shown
        assert command_lines_with(secret) == []
        lab.run("cancel", "good")
        lab.wait_for("good", "abandoned")
        pod.stop()
    finally:
        lab.close()
    # The files of the test's own cluster: its state, which keeps the environment of jobs, its logs, its spool.
    found = files_with(secret, [bed.directory], Path(good))
    assert sorted(found) == sorted([of_root, open_to_all])
