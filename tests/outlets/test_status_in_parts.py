"""An exit status goes through a pipe to a shell that waits in turns: a turn may be over between two of its digits."""

from __future__ import annotations

import os
import subprocess

import msgspec
import pytest

from dispatcher.contract import WRAPPER_FILE
from dispatcher.templates.launcher import render_launcher
from dispatcher.workspace import Layout

# Longer than a turn.
PAUSE = "sleep 1.5"


def in_parts(script: str, said: str, parts: str) -> str:
    """The script with `parts` in place of the one line that says something."""
    assert script.count(said) == 1
    end = "\n" if said.endswith("\n") else ""
    return script.replace(said, f"{{ {parts.replace('PAUSE', PAUSE)}; }}{end}")


@pytest.mark.parametrize("setup", ["", "true"])
def test_the_wrapper_reports_all_digits(trial, setup):
    one = trial("exit 42", setup=setup, lost_after_s=4.0)
    script = in_parts(one.bundle.files[WRAPPER_FILE].decode(), "echo $?\n", "printf 4; PAUSE; echo 2")
    if setup:
        script = in_parts(script, "echo started", "printf star; PAUSE; echo ted")
    one.bundle = msgspec.structs.replace(one.bundle, files={**one.bundle.files, WRAPPER_FILE: script.encode()})
    assert one.start().end().exit_code == 42


@pytest.mark.parametrize(
    ("template", "values", "said"),
    [("pbs_nodes.sh.j2", {}, 'echo "$index $?"'), ("volcano_nodes.sh.j2", {"nodes": 1}, "echo $?")],
)
def test_what_waits_for_nodes_reports_all_digits(tmp_path, template, values, said):
    script = render_launcher(Layout(tmp_path), template, values)
    index = "0 " if "index" in said else ""
    (tmp_path / "nodes.sh").write_text(in_parts(script, said, f"printf '%s' '{index}4'; PAUSE; echo 2"))
    # Of PBS: it runs a command on a host.
    (tmp_path / "pbs_tmrsh").write_text('#!/bin/bash\nshift; exec "$@"\n')
    (tmp_path / "pbs_tmrsh").chmod(0o755)
    (tmp_path / "hosts").write_text("h0\n")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "DISPATCHER_ATTEMPT_DIR": str(tmp_path)}
    environment |= {"PBS_NODEFILE": str(tmp_path / "hosts"), "VC_WORKER_HOSTS": "h0"}
    done = subprocess.run(["bash", tmp_path / "nodes.sh", "true"], env=environment, timeout=60, check=False)
    assert done.returncode == 42
