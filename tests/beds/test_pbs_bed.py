"""The stand-ins of PBS: what they refuse, with which status, and how jobs end on them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .pbs import NODES, PbsBed


def call(bed: PbsBed, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env={**os.environ, **bed.env, **env}, capture_output=True, text=True, check=False)


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.sh"
    path.write_text(text)
    return os.fspath(path)


def submit(bed: PbsBed, tmp_path: Path, text: str, *words: str) -> str:
    output = ("-j", "oe", "-o", os.fspath(tmp_path / "out"))
    return bed.run("qsub", *output, *words, script(tmp_path, text)).strip()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("-q", "nowhere"), 170, "qsub: Unknown queue"),
        (("-q", "closed"), 173, "qsub: Queue is not enabled"),
        (("-l", "nonsense=1"), 187, "qsub: Unknown resource: nonsense"),
        (("-l", "select=1:nonsense=1"), 187, "qsub: Unknown resource: nonsense"),
        (("-l", "select=1:ncpus"), 166, "qsub: Illegal attribute or resource value"),
        (("-l", "select=1:ncpus=x"), 166, "qsub: Illegal attribute or resource value"),
        (("-l", "select=1:ncpus=1", "-l", "ncpus=1"), 5, 'cannot be used with "select" or "place"'),
        (("-l", "place=scatter"), 7, 'Cannot have "place" without'),
        (("-l", "select=1:ncpus=1", "-l", "place=apart"), 166, "qsub: Illegal attribute or resource value"),
        (("-l", "walltime=soon"), 166, "qsub: Illegal attribute or resource value"),
        (("-N", "1st"), 2, "qsub: illegal -N value"),
        (("-N", ".hidden"), 2, "qsub: illegal -N value"),
        (("-N", "x" * 231), 2, "qsub: illegal -N value"),
        (("-r", "no"), 2, "qsub: illegal -r value"),
        (("-o", "/tmp/ü"), 2, "qsub: illegal -o value"),
        (("-W", "umask=99"), 166, "qsub: Illegal attribute or resource value umask"),
        (("-W", "nonsense=1"), 154, "qsub: Undefined attribute"),
        (("-Y",), 2, "option -Y not recognized"),
        (("-l", "walltime=10:00:00"), 188, "qsub: Job violates queue and/or server resource limits"),
    ],
)
def test_what_qsub_refuses(
    start_pbs: Callable[..., PbsBed], tmp_path: Path, words: tuple[str, ...], status: int, message: str
) -> None:
    queues = {"workq": {"enabled": True, "started": True, "max_walltime_s": 3600}}
    bed = start_pbs(queues={**queues, "closed": {"enabled": False, "started": True}})
    ran = call(bed, "qsub", *words, script(tmp_path, "true"))
    assert (ran.returncode, ran.stdout) == (status, "")
    assert message in ran.stderr
    assert bed.jobs() == {}


def test_scripts_that_cannot_be_read(pbs: PbsBed, tmp_path: Path) -> None:
    missing = call(pbs, "qsub", os.fspath(tmp_path / "none"))
    assert (missing.returncode, missing.stderr) == (1, "qsub: script file:: No such file or directory\n")
    assert call(pbs, "qsub", os.fspath(tmp_path)).stderr == "qsub: script not a file\n"
    assert call(pbs, "qsub").returncode == 2


def test_jobs_that_cannot_be_asked_for(pbs: PbsBed, tmp_path: Path) -> None:
    job = submit(pbs, tmp_path, "exit 3")
    pbs.wait_for(job, "F")
    finished = call(pbs, "qstat", "-f", "-F", "json", job)
    assert finished.returncode == 35
    assert "Jobs" not in json.loads(finished.stdout)
    unknown = call(pbs, "qstat", "-x", "-f", "-F", "json", "99", job)
    assert (unknown.returncode, unknown.stderr) == (153, "qstat: Unknown Job Id 99.pbs\n")
    assert json.loads(unknown.stdout)["Jobs"][job]["Exit_status"] == 3
    at_once = call(pbs, "qstat", "-x", "-E", "-f", "-F", "json", "99", job)
    assert (at_once.returncode, at_once.stderr, list(json.loads(at_once.stdout)["Jobs"])) == (0, "", [job])
    none = call(pbs, "qstat", "-x", "-E", "-f", "-F", "json", "98", "99")
    assert (none.returncode, none.stderr) == (153, "qstat: Unknown Job Id 98.pbs\n")
    assert call(pbs, "qdel", job).returncode == 35
    assert call(pbs, "qdel", "99").returncode == 153
    pbs.configure(history=False)
    forgotten = call(pbs, "qstat", "-x", "-f", "-F", "json", job)
    assert (forgotten.returncode, "Jobs" in forgotten.stdout) == (0, False)
    assert "not configured to maintain job history" in forgotten.stderr
    assert call(pbs, "qselect", "-x").returncode == 0
    with pbs.without_server():
        away = call(pbs, "qstat", "-f", "-F", "json", job)
        assert (away.returncode, "Jobs" in away.stdout) == (255, False)
        assert call(pbs, "qsub", os.fspath(tmp_path)).returncode == 162


def test_both_versions_of_several_ids(pbs: PbsBed, tmp_path: Path) -> None:
    jobs = [submit(pbs, tmp_path, "true") for _ in range(2)]

    def shown(*options: str) -> list[str]:
        return list(json.loads(pbs.run("qstat", *options, "-x", "-f", "-F", "json", *jobs))["Jobs"])

    assert (shown(), shown("-E")) == (jobs[:1], jobs)
    pbs.configure(shows_first_only=False)
    assert (shown(), shown("-E")) == (jobs, jobs)


def ended(bed: PbsBed, job: str) -> tuple[str, Any, int]:
    job_ = bed.wait_for(job, "F")
    return job_["job_state"], job_["Exit_status"], job_["run_count"]


def test_how_jobs_end(pbs: PbsBed, tmp_path: Path) -> None:
    assert ended(pbs, submit(pbs, tmp_path, "echo out; echo err >&2; exit 3")) == ("F", 3, 1)
    assert (tmp_path / "out").read_text() == "out\nerr\n"
    assert ended(pbs, submit(pbs, tmp_path, "kill -9 $$")) == ("F", 265, 1)
    assert ended(pbs, submit(pbs, tmp_path, "bash -c 'kill -9 $$'")) == ("F", 137, 1)
    assert ended(pbs, submit(pbs, tmp_path, "sleep 600", "-l", "walltime=1")) == ("F", -29, 1)
    assert "walltime 1 exceeded limit 1" in (tmp_path / "out").read_text()
    job = submit(pbs, tmp_path, "sleep 600")
    pbs.wait_for(job, "R")
    pbs.run("qdel", job)
    assert ended(pbs, job) == ("F", 271, 1)
    pbs.configure(kill_delay_s=0.3)
    stubborn = submit(pbs, tmp_path, "trap '' TERM; touch $0.begun; while :; do sleep 0.1; done")
    pbs.wait_for_file(stubborn, "script.begun")
    pbs.run("qdel", stubborn)
    assert ended(pbs, stubborn)[1] == 265


def test_jobs_that_are_held(pbs: PbsBed, tmp_path: Path) -> None:
    job = submit(pbs, tmp_path, "true", "-h")
    assert pbs.jobs()[job]["job_state"] == "H"
    pbs.run("qrls", job)
    assert ended(pbs, job) == ("F", 0, 1)
    other = submit(pbs, tmp_path, "true", "-h")
    pbs.run("qdel", other)
    assert ended(pbs, other) == ("F", None, 0)


def test_runs_that_are_taken_back(pbs: PbsBed, tmp_path: Path) -> None:
    counting = f"echo run >>{tmp_path}/runs; sleep 0.5"
    job = submit(pbs, tmp_path, counting)
    pbs.wait_for(job, "R")
    pbs.run("qrerun", job)
    assert ended(pbs, job) == ("F", 0, 2)
    stays = submit(pbs, tmp_path, counting, "-r", "n")
    pbs.wait_for(stays, "R")
    assert call(pbs, "qrerun", stays).returncode == 190
    assert ended(pbs, stays) == ("F", 0, 1)


def test_a_lost_node(pbs: PbsBed, tmp_path: Path) -> None:
    job, again = (submit(pbs, tmp_path, "sleep 600", "-r", flag) for flag in "ny")
    pbs.wait_for(job, "R")
    pbs.wait_for(again, "R")
    pbs.lose_node("node1")
    assert ended(pbs, job) == ("F", -20, 1)
    assert pbs.wait_for(again, "R")["placed"][0]["node"] == "node2"
    assert pbs.jobs()[again]["run_count"] == 2


def test_room_on_nodes(pbs: PbsBed, tmp_path: Path) -> None:
    whole = submit(pbs, tmp_path, "sleep 600", "-l", "select=2:ngpus=4", "-l", "place=scatter")
    pbs.wait_for(whole, "R")
    waits = submit(pbs, tmp_path, "sleep 600", "-l", "select=1:ngpus=1")
    assert pbs.jobs()[waits]["comment"].startswith("Not Running")
    never = submit(pbs, tmp_path, "true", "-l", "select=1:ncpus=999")
    assert pbs.jobs()[never]["comment"].startswith("Can Never Run")
    nodes = json.loads(pbs.run("pbsnodes", "-a", "-F", "json"))["nodes"]
    assert {name: node["resources_assigned"]["ngpus"] for name, node in nodes.items()} == dict.fromkeys(NODES, 4)
    pbs.run("qdel", whole)
    pbs.wait_for(waits, "R")


def test_tasks_on_other_nodes(pbs: PbsBed, tmp_path: Path) -> None:
    """They have the job's environment and output, not those of pbs_tmrsh."""
    text = (
        f"PATH=$PATH:{pbs.bin}; export MINE=1; trap '' TERM; "
        "pbs_tmrsh node2 bash -c 'echo $PBS_NODENUM ${MINE-none}; exit 4' >/dev/null;"
        "echo $?; pbs_tmrsh node2 bash -c 'kill -TERM $$'; echo $?; pbs_tmrsh node3 true; echo $?"
    )
    job = submit(pbs, tmp_path, text, "-l", "select=2:ncpus=1", "-l", "place=scatter")
    assert ended(pbs, job) == ("F", 0, 1)
    said = (tmp_path / "out").read_text().splitlines()
    assert said == ["1 none", "4", "15", f'pbs_tmrsh: host "node3" is not a node in job <{job}>', "255"]
    assert call(pbs, "pbs_tmrsh", "node1", "true").returncode == 255


def test_odd_environments_make_invalid_json(pbs: PbsBed, tmp_path: Path) -> None:
    words = ["qsub", "-V", script(tmp_path, "true")]
    call(pbs, *words, ODD='a"b\nc')
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(pbs.run("qstat", "-x", "-f", "-F", "json"), strict=False)
