"""An attempt on both workers of a TPU VM, from its claim to its record: real gcloud, real workers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import commands
import pytest
from beds.tpu import TpuBed
from fleet import COMMAND, fleet_at, shell

pytestmark = pytest.mark.slow

PATIENCE_S = 240.0
# Worker 1 fails when it is told to, by a file; worker 0 would go on for long.
SCRIPT = """\
echo "this is $DISPATCHER_PROCESS_ID of $DISPATCHER_NUM_PROCESSES at $DISPATCHER_COORDINATOR"
[ "$DISPATCHER_PROCESS_ID" = 1 ] || sleep 600
until [ -e /tmp/go ]; do sleep 0.1; done
echo 'ValueError: bad batch'
exit 3
"""


def test_a_worker_fails_the_attempt_with_its_name_and_log(tmp_path: Path, tpu: TpuBed) -> None:
    first, second = tpu.create("pod", "v4-16")
    with fleet_at(tmp_path / "a'; echo foo") as fleet:
        fleet.variables = tpu.env
        settings = f"type: tpu, zone: {tpu.zone}, accelerator_type: v4-16"
        fleet.write_config(f"code: none\nkill_grace: 1s\nhosts: {{pod: {{{settings}}}}}\n")
        fleet.write_manifest([shell("a", SCRIPT, outlet="pod")])
        dispatcher = fleet.start("pod1", "--outlet", "pod:1", "--until-empty", poll="2")
        fleet.wait_for("a", "running", timeout_s=PATIENCE_S)
        words = [*COMMAND, "logs", "-f", "a"]
        environment = fleet.environment()
        with commands.Popen(words, cwd=fleet.root, env=environment, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            shown = sorted(follower.stdout.readline() for _ in range(2))
            assert [line[:19] for line in shown] == ["[0] this is 0 of 2 ", "[1] this is 1 of 2 "]
            assert all(f" at {first.address}:" in line for line in shown)
            second.path("/tmp/go").touch()
            assert follower.stdout.readline() == "[1] ValueError: bad batch\n"
            rest, _ = follower.communicate(timeout=PATIENCE_S)
            assert (rest, follower.returncode) == ("", 0)
        fleet.wait_for("a", "failed", timeout_s=PATIENCE_S)
        record, paths = fleet.record("a"), fleet.attempt("a")
        assert record.reason == "exit 3"
        assert record.error == "worker 1: ValueError: bad batch"
        assert fleet.output("a").startswith("this is 0 of 2 ")
        assert paths.log_of(1).read_text().endswith("ValueError: bad batch\n")
        assert not [line for line in first.run("ps", "-eo", "args").splitlines() if "sleep 600" in line]
        # It tells by its status that a job has failed.
        assert dispatcher.end(PATIENCE_S) == 1
