"""`dispatcher clean --hosts`: what attempts have left on hosts behind a real sshd."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from beds.sshd import SshBed
from beds.volcano import VolcanoBed
from fleet import Fleet, shell, wait_until

from dispatcher.outlets.batch.identity import read_submission, workspace_id

pytestmark = pytest.mark.slow

CONFIG = """
hosts:
  h1: {type: plain, ssh: h1}
  h2: {type: plain, ssh: h2}
clusters: {h1: {work: ~/work}}
"""


@pytest.fixture
def lab(fleet: Fleet, ssh: SshBed) -> Fleet:
    fleet.variables = {"DISPATCHER_SSH_CONFIG": os.fspath(ssh.config)}
    fleet.write_config(CONFIG)
    (fleet.root / ".gitignore").write_text("run_state/\nmatrix/\n")
    (fleet.root / "code.py").write_text("print('big')\n" * 1000)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Code"]):
        named = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *named, *words], cwd=fleet.root, check=True)
    return fleet


def test_trees_that_were_kept_after_a_failure_are_removed(lab: Fleet, ssh: SshBed) -> None:
    running = "echo begun; until [ -e go ]; do sleep 0.05; done; exit 3"
    lab.write_manifest([shell("failed", "exit 3", gpus=0, outlet="h1"), shell("fine", "true", gpus=0, outlet="h1")])
    assert lab.start("pod", "--slots", "0", "--outlet", "h1:2", "--until-empty", poll="0.5").end() == 1
    work = ssh["h1"].path("work")
    (mirror,) = (path for path in work.iterdir() if (path / "run_state").exists())
    assert not list((mirror / "run_state/submissions").iterdir()), "the last files went before the pod ended"
    (kept,) = work.glob("dispatcher-work/*/*")
    assert kept.name == "failed.1" and list(kept.glob("*/tree/code.py"))
    lab.write_manifest([shell("runs", running, gpus=0, outlet="h1")])
    pod = lab.start("pod", "--slots", "0", "--outlet", "h1:2", poll="0.5")
    wait_until(lambda: list(work.glob("dispatcher-work/*/runs.1/*/tree/code.py")), "it runs")
    submission = read_submission(lab.attempt("runs"))
    assert submission is not None
    assert {path.name for path in mirror.glob("run_state/submissions/*")} >= {submission.name}
    closed = next(kept.glob("*/tree"))
    (closed / "cache").mkdir()
    (closed / "cache" / "module").touch()
    (closed / "cache").chmod(0o500)

    listed = json.loads(lab.run("clean", "--hosts", "--json"))
    (item,) = listed["items"]
    assert item["what"].startswith("h1:") and item["what"].endswith("/failed.1") and item["bytes"] > 10_000
    assert "1 directory" in lab.run("clean", "--hosts") and "add --yes" in lab.run("clean", "--hosts")
    assert kept.exists()
    assert lab.run("clean", "--hosts", "--older-than", "1d") == "nothing to remove\n"
    assert "removed" in lab.run("clean", "--hosts", "--yes")
    assert [path.name for path in work.glob("dispatcher-work/*/*")] == ["runs.1"]
    assert lab.run("clean", "--hosts") == "nothing to remove\n"
    next(work.glob("dispatcher-work/*/runs.1/*/tree")).joinpath("go").touch()
    lab.wait_for("runs", "failed")
    gone = f"the files of {submission.name} are removed at the end"
    wait_until(lambda: not (mirror / "run_state/submissions" / submission.name).exists(), gone)
    assert pod.stop() in (0, 1)


def test_a_host_that_cannot_be_reached_is_named(lab: Fleet, ssh: SshBed) -> None:
    ssh["h1"].stop_sshd()
    done = lab.try_("clean", "--hosts")
    assert done.returncode == 1
    assert "note: h1: " in done.stderr and "nothing to remove" in done.stdout
    refused = lab.try_("clean", "--hosts", "--attempts")
    assert refused.returncode == 2 and "--hosts looks at the hosts alone" in refused.stderr


def test_trees_outside_of_the_configured_directory_are_found(lab: Fleet, ssh: SshBed) -> None:
    """Where the configuration, or the login of the host, has node.sh extract code instead."""
    lab.write_config(
        """
hosts:
  h1: {type: plain, ssh: h1, env: {DISPATCHER_WORK_OVERRIDE: $HOME/mine}}
  h2: {type: plain, ssh: h2}
clusters: {h1: {work: ~/work}}
methods:
  shell: {env: {DISPATCHER_WORK_OVERRIDE: ~/of-method}}
"""
    )
    me = workspace_id(lab.layout)
    wanted = []
    for host, base in (("h1", "mine"), ("h1", "of-method"), ("h1", "work"), ("h1", "tmp"), ("h2", "override")):
        tree = ssh[host].path(base) / "dispatcher-work" / me / f"{base}.1"
        (tree / "n/tree").mkdir(parents=True)
        os.utime(tree, (0, 0))
        wanted.append(f"{host}:{tree}")
    set_variable(ssh["h1"], "TMPDIR", "tmp")
    set_variable(ssh["h2"], "DISPATCHER_WORK_OVERRIDE", "override")
    listed = json.loads(lab.run("clean", "--hosts", "--json"))
    assert sorted(item["what"].rpartition("/")[2] for item in listed["items"]) == sorted(
        one.rpartition("/")[2] for one in wanted
    )
    lab.run("clean", "--hosts", "--yes")
    assert lab.run("clean", "--hosts") == "nothing to remove\n"


def set_variable(host: Any, name: str, folder: str) -> None:
    """In the start file of a login; the folder is in its home."""
    host.path(".bashrc").write_text(f"export {name}=$HOME/{folder}\n")


def test_what_is_left_on_a_volume_is_found(fleet: Fleet, volcano: VolcanoBed) -> None:
    volume = Path(volcano.make_volume("data"))
    words = f"kubeconfig: {volcano.kubeconfig}, namespace: {volcano.namespace}, image: jax, pvc_mount_path: /data"
    fleet.write_config(f"code: none\nhosts:\n  k8s: {{type: volcano, pvc_name: data, {words}}}\n")
    me = workspace_id(fleet.layout)
    left = volume / ".dispatcher" / me / "run_state/submissions/d-old"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    listed = json.loads(fleet.run("clean", "--hosts", "--json"))
    assert [item["what"] for item in listed["items"]] == [f"k8s:/data/.dispatcher/{me}/run_state/submissions/d-old"]
    fleet.run("clean", "--hosts", "--yes")
    assert not left.exists()
