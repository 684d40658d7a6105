"""What PBS's programs are called with, and what their answers mean."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dispatcher.errors import ConfigError, OutletError
from dispatcher.hosts.types import PbsHost, PbsOptions, PbsQueue
from dispatcher.outlets.base import Bundle, Key, Request, Slot
from dispatcher.outlets.batch.scheduler import Accepted, Doubtful, Limits, Phase, Refused, Submission, Submitted
from dispatcher.outlets.pbs import programs
from dispatcher.outlets.pbs.scheduler import PbsScheduler
from dispatcher.outlets.remote.operations import Failed, Ran, Run
from dispatcher.workspace import Layout

GOLDEN = Path(__file__).parent / "golden"
ROOT = "/w/a'; echo foo"
FOUR = Request(4)


def scheduler(**settings: Any) -> PbsScheduler:
    return PbsScheduler(PbsHost(name="hpc", cluster="hpc", **settings), Layout("/nowhere"))


def submission(*names: str, request: Request = FOUR, **words: Any) -> Submission:
    layout = Layout(ROOT)
    keys = [Key(name, 1) for name in names]
    directories = [str(layout.attempt(key.job_id, key.number).directory) for key in keys]
    bundles = [
        Bundle(key=key, request=request, slot=Slot(), files={}, environment={"DISPATCHER_ATTEMPT_DIR": at, "OLD": None})
        for key, at in zip(keys, directories, strict=True)
    ]
    groups = (tuple(range(len(names))),)
    return Submission(
        name="d-0123", bundles=tuple(bundles), directories=tuple(directories), layout=layout, request=request,
        groups=groups, **words,
    )  # fmt: skip


def attempt(name: str = "d-1", handle: str | None = "12.pbs") -> Submitted:
    return Submitted(key=Key(name, 1), name=name, index=0, directory=f"{ROOT}/run_state/jobs/{name}/1", handle=handle)


def listing(*jobs: dict[str, Any]) -> str:
    return json.dumps({"Jobs": {job.pop("id"): job for job in jobs}})


def test_the_script_is_as_it_was() -> None:
    """Read the difference; if it is meant, write the new script to the golden file."""
    files = scheduler().scripts(submission("a", "b'$(x)", time_limit_s=3600.0))
    (script,) = files.values()
    assert list(files) == [f"{ROOT}/run_state/submissions/d-0123/submit.sh"]
    assert script.decode() == (GOLDEN / "submit.sh").read_text()
    subprocess.run(["bash", "-n"], input=script, check=True)


def test_what_is_submitted() -> None:
    call = scheduler(queues=(PbsQueue("gpu"),)).submit(submission("a", time_limit_s=60.0))
    assert isinstance(call, Run)
    assert list(call.words) == [
        *("qsub", "-q", "gpu", "-N", "d-0123", "-r", "n", "-W", "umask=0022", "-S", "/bin/bash", "-j", "oe"),
        *("-o", f"{ROOT}/run_state/submissions/d-0123/output.log"),
        *("-l", "select=1:ncpus=4:ngpus=4", "-l", "walltime=00:06:00"),
        f"{ROOT}/run_state/submissions/d-0123/submit.sh",
    ]
    assert scheduler().error_log(attempt("d-0123")) == f"{ROOT}/run_state/submissions/d-0123/output.log"


@pytest.mark.parametrize(
    ("settings", "projects", "expected"),
    [
        ({"project": "p1"}, (), "p1"),
        ({"project": "p1", "job_project_source": "user"}, (("label", "x"), ("user", "ada b")), "ada_b"),
        ({"project": "p1", "job_project_source": "label"}, (), "p1"),
        ({"job_project_source": "workspace"}, (), "nowhere"),
        ({"job_project_source": "label:team"}, (), None),
    ],
)
def test_the_project(settings: dict[str, Any], projects: tuple[tuple[str, str], ...], expected: str | None) -> None:
    """What PBS cannot take in a name is replaced."""
    call = scheduler(**settings).submit(submission("a", request=Request(1, projects=projects)))
    assert isinstance(call, Run)
    words = list(call.words)
    assert (words[words.index("-P") + 1] if "-P" in words else None) == expected


def test_options_of_a_job() -> None:
    request = Request(4, pbs=PbsOptions(queue="big", slots_per_node=2, pbsbatch_args=("-l", "select=1:fs=home", "-V")))
    call = scheduler(queues=(PbsQueue("gpu"),)).submit(submission("a", request=request))
    assert isinstance(call, Run)
    assert list(call.words)[1:3] == ["-q", "big"]
    assert "select=2:ncpus=2:ngpus=2:fs=home" in call.words
    assert call.words[-2] == "-V"
    assert scheduler(slots_per_node=4).launcher(request)


def test_options_of_a_job_that_contradict() -> None:
    """It is not claimed for the host, and one message names all of them."""
    request = Request(4, pbs=PbsOptions(pbsbatch_args=("-r", "y", "-N", "mine")))
    why = scheduler().refuses(request)
    assert why == (
        "pbsbatch_args for hpc: 2 problems: -r y contradicts what the dispatcher sets (-r n: an attempt runs once): "
        "remove it; -N mine contradicts what the dispatcher sets (-N d-...: the name by which the job is found again): "
        "remove it"
    )
    assert "option -Y" in scheduler().refuses(Request(4, pbs=PbsOptions(pbsbatch_args=("-Y",))))


def test_the_script_for_several_nodes() -> None:
    pbs = scheduler(slots_per_node=4)
    assert pbs.launcher(Request(4)) == ()
    assert pbs.launcher(Request(8))[0] == "bash"
    files = pbs.scripts(submission("a", request=Request(8)))
    assert sorted(path.rpartition("/")[2] for path in files) == ["nodes.sh", "submit.sh"]
    for content in files.values():
        subprocess.run(["bash", "-n"], input=content, check=True)


def test_settings_that_cannot_be_used_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="-r y contradicts"):
        scheduler(pbsbatch_args=("-r", "y"))
    late = scheduler(pbsbatch_args=("-l", "walltime=1"))
    with pytest.raises(OutletError, match="-l walltime=1 contradicts"):
        late.submit(submission("a", time_limit_s=60.0))


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (Ran(exit_code=0, out="12.pbs\n"), Accepted(handle="12.pbs")),
        (Ran(exit_code=0, out="12.pbs\n", err="qsub: note: low priority"), Accepted(handle="12.pbs")),
        (Ran(exit_code=0, out="Charged: x\n123.pbs-1.site.org\n"), Accepted(handle="123.pbs-1.site.org")),
        (Ran(exit_code=0, out="12\n"), Accepted(handle="12")),
        (Ran(exit_code=0, out="thank you"), Doubtful(why="no job id: qsub: thank you (exit status 0)")),
        (Ran(exit_code=None), Doubtful(why="qsub: it did not answer in time")),
        (Ran(exit_code=-9), Doubtful(why="qsub: exit status -9")),
        (Ran(exit_code=162, err="no server"), Doubtful(why="qsub: no server (exit status 162)")),
        (Ran(exit_code=171, err="credential"), Doubtful(why="qsub: credential (exit status 171)")),
        (Ran(exit_code=255, err="auth"), Doubtful(why="qsub: auth (exit status 255)")),
        (Ran(exit_code=183, err="protocol"), Doubtful(why="qsub: protocol (exit status 183)")),
        (Ran(exit_code=170, err="qsub: Unknown queue\n"), Refused(why="qsub: Unknown queue (exit status 170)")),
        (Ran(exit_code=38, err="qsub: limit"), Refused(why="qsub: limit (exit status 38)", is_transient=True)),
        (Failed(error="there is no qsub", errno=2), Refused(why="there is no qsub", is_transient=True)),
    ],
)  # fmt: skip
def test_what_qsub_answers(answer: Any, meaning: Any) -> None:
    assert scheduler().accepted(submission("a"), answer) == meaning


def test_one_question_for_all() -> None:
    attempts = [attempt(f"d-{number}", f"{number}.pbs") for number in range(100)] + [attempt("d-x", None)]
    (call,) = scheduler().query(attempts)
    assert isinstance(call, Run)
    assert list(call.words[4:]) == [*(f"{number}.pbs" for number in range(100)), "--", "d-x"]
    assert scheduler().query([]) == []


def test_what_qsub_leaves_behind_does_not_keep_the_answer_open(tmp_path: Path) -> None:
    """It keeps a process for a minute, which has none of its three standard streams."""
    qsub = tmp_path / "qsub"
    qsub.write_text(f'#!/bin/sh\nsleep 600 <&- >&- 2>&- &\necho $! >"{tmp_path}/left"\necho "$2.pbs"\n')
    qsub.chmod(0o755)
    words = programs.submit(["gpu", "cpu"], ["-r", "n", "submit.sh"]).words
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    try:
        ran = subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=60)
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert (ran.stdout, ran.stderr) == ("gpu.pbs\n", "")


@pytest.mark.parametrize(("resource", "cure"), [("ngpus", "gres_supported: false"), ("gpu_type", "type=string")])
def test_a_resource_that_a_fresh_server_does_not_have(resource: str, cure: str) -> None:
    answer = Ran(exit_code=187, err=f"qsub: Unknown resource: {resource}\n")
    refused = scheduler().accepted(submission("a"), answer)
    assert isinstance(refused, Refused)
    assert f'qmgr -c "create resource {resource} type=' in refused.why and cure in refused.why


def test_answers_that_would_be_too_long() -> None:
    """Each answer counts for the jobs that it was asked for."""
    attempts = [attempt(f"d-{number}", f"{number}.pbs") for number in range(1001)]
    first, second = scheduler().query(attempts)
    assert isinstance(first, Run) and isinstance(second, Run)
    assert (len(first.words), list(second.words[4:])) == (1005, ["1000.pbs", "--"])
    out = [listing(*({"id": one.handle, "Job_Name": one.name, "job_state": "R"} for one in part)) for part in
           (attempts[:1000], attempts[1000:])]  # fmt: skip
    found = scheduler().states(attempts, [Ran(exit_code=0, out=each) for each in out])
    assert found.keys() == {one.key for one in attempts}


def test_an_answer_counts_under_its_name_alone() -> None:
    out = listing({"id": "12.pbs", "Job_Name": "other", "job_state": "R"})
    assert scheduler().states([attempt()], [Ran(exit_code=0, out=out)]) == {}


def test_jobs_that_were_submitted_twice() -> None:
    """The one that was refused says nothing."""
    refused = {"id": "13.pbs", "Job_Name": "d-1", "job_state": "F", "Exit_status": 91, "run_count": 1}
    runs = {"id": "12.pbs", "Job_Name": "d-1", "job_state": "R"}
    for jobs in ([dict(runs), dict(refused)], [dict(refused), dict(runs)]):
        found = scheduler().states([attempt(handle=None)], [Ran(exit_code=0, out=listing(*jobs))])
        assert found[Key("d-1", 1)].phase is Phase.RUNNING


@pytest.mark.parametrize("code", [153, 35])
def test_a_job_that_is_not_known(code: int) -> None:
    ran = Ran(
        exit_code=code, out='{"timestamp": 1}', err="qstat: No such thing as 12.pbs, in the words of any version\n"
    )
    assert scheduler().states([attempt()], [ran]) == {}


@pytest.mark.parametrize(
    "answer",
    [
        Ran(exit_code=162, err="qstat: cannot connect to server pbs"),
        Ran(exit_code=None),
        Ran(exit_code=0, out="no JSON"),
        Ran(exit_code=0),
        Ran(exit_code=153, err="qstat: Unknown Job Id 12.pbs\nqstat: cannot connect to server pbs2"),
        Failed(error="no qstat", errno=2),
        # It lacks the job, and does not say that there is none.
        Ran(exit_code=0, out='{"timestamp": 1}'),
        Ran(exit_code=0, out=listing({"id": "112.pbs", "Job_Name": "d-2", "job_state": "R"})),
        Ran(exit_code=153, out='{"timestamp": 1}', err="qstat: Unknown Job Id 112.pbs"),
    ],
)
def test_no_answer_is_no_absence(answer: Any) -> None:
    with pytest.raises(OutletError):
        scheduler().states([attempt()], [answer])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Ran(exit_code=0), ""),
        (Ran(exit_code=35, err="qdel: Job has finished 12.pbs"), ""),
        (Ran(exit_code=153, err="qdel: Unknown Job Id 12.pbs"), ""),
        (Ran(exit_code=237), ""),
        (Ran(exit_code=162, err="qdel: no server"), "qdel: no server (exit status 162)"),
        (Ran(exit_code=None), "qdel: it did not answer in time"),
        (Failed(error="no qdel", errno=2), "no qdel"),
    ],
)
def test_what_qdel_answers(answer: Any, problem: str) -> None:
    assert scheduler().cancelled(answer) == problem


def test_cancellations_go_in_batches() -> None:
    attempts = [attempt(f"d-{number}", f"{number}.pbs") for number in range(150)] + [attempt("d-x", None)]
    calls = scheduler().cancel(attempts, force=False)
    sizes = [len(call.words) - 6 for call in calls if isinstance(call, Run)]
    assert sizes == [100, 50, 1]


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ("[u:PBS_GENERIC=200]", 200),
        ("[o:PBS_ALL=1000], [u:PBS_GENERIC=200], [u:alice=50]", 50),
        ("[o:PBS_ALL=1000]", None),
        ("", None),
    ],
)
def test_the_limit_of_jobs_in_the_queue(limit: str, most: int | None) -> None:
    server = {"server_state": "Active", **({"max_queued": limit} if limit else {})}
    out = "alice\n" + json.dumps({"Server": {"pbs": server}})
    assert scheduler().limits([Ran(exit_code=0, out=out)]) == Limits(in_flight=most)
    assert scheduler().limits([Ran(exit_code=1)]) == Limits()
    assert scheduler().limits([Ran(exit_code=0, out="alice\nno JSON")]) == Limits()
    assert scheduler().limits([Failed(error="x")]) == Limits()


@pytest.mark.parametrize(("indent", "blank"), [(None, " "), (4, ""), (4, "\t")])
def test_the_server_that_answers_is_told(tmp_path: Path, indent: int | None, blank: str) -> None:
    """As releases of the server print it, and in one line."""
    answer = {"timestamp": 1, "pbs_version": "23.06.06", "pbs_server": "alpha", "Server": {"alpha": {"total_jobs": 3}}}
    (tmp_path / "answer").write_text(json.dumps(answer, indent=indent).replace(": ", f":{blank}"))
    (tmp_path / "qstat").write_text(f"#!/bin/sh\ncat '{tmp_path}/answer'\n")
    (tmp_path / "qstat").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = scheduler().where().question.words
    assert subprocess.run(words, env=variables, capture_output=True, text=True, check=True).stdout.strip() == "alpha"
    (tmp_path / "qstat").write_text("#!/bin/sh\necho cannot connect to server alpha >&2\nexit 162\n")
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (162, "cannot connect to server alpha\n")
