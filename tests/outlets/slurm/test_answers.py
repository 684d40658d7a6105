"""How answers of SLURM's programs are read, and what they are asked. Texts were recorded from SLURM 22.05."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dispatcher.errors import OutletError
from dispatcher.hosts.types import Hosts, Partition, SlurmHost, SlurmOptions
from dispatcher.outlets.base import PREEMPTED, Key, Request
from dispatcher.outlets.batch.scheduler import Accepted, Doubtful, Limits, Phase, Refused, Submitted
from dispatcher.outlets.remote.operations import Failed, Ran, Run
from dispatcher.outlets.slurm import cancelling, questions, submitting
from dispatcher.outlets.slurm.directives import own_variables
from dispatcher.outlets.slurm.resources import host_for
from dispatcher.outlets.slurm.scheduler import SlurmScheduler
from dispatcher.outlets.solver.slurm import questions as slurm_questions
from dispatcher.workspace import Layout

NAME = "d-0123456789ab-0123456789abcdef"
WIDTHS = (20, 14, 20, 128, 24, 14, 26, 12, 72, 256)


def attempt(job: str, name: str = NAME, index: int = 0, handle: str | None = None) -> Submitted:
    return Submitted(key=Key(job, 1), name=name, index=index, directory=f"/w/run_state/jobs/{job}/1", handle=handle)


def line(*cells: object) -> str:
    return "".join(f"{cell!s:<{width}}"[:width] for cell, width in zip(cells, WIDTHS, strict=True)) + "\n"


def task(index: int, state: str, raw: int = 0, preempted: str = "N/A", reason: str = "None", host: str = "n1") -> str:
    return line(12, index, 13 + index, NAME, state, raw, preempted, 0, host, reason)


# squeue


def test_one_squeue_for_all() -> None:
    asked = questions.query([attempt(f"j{index}", index=index) for index in range(1000)])
    assert len(asked) == 1
    words = asked[0].words
    assert f"--name={NAME}" in words
    assert {"--me", "--all", "--array", "--states=all"} <= set(words)
    assert not [word for word in words if word.startswith(("--job", "--partition", "-j", "-p"))]
    many = questions.query([attempt(f"j{index}", name=f"d-{index:044d}") for index in range(2500)])
    assert len(many) == 2
    # The kernel's limit of one argument.
    assert max(len(word) for run in many for word in run.words) < 128 * 1024


def test_the_states_of_an_array() -> None:
    attempts = [attempt(f"j{index}", index=index) for index in range(6)]
    out = task(0, "COMPLETED") + task(1, "FAILED", 768, reason="NonZeroExitCode") + task(2, "RUNNING", host="n2")
    out += task(3, "PENDING", host="n/a", reason="Resources") + task(4, "PREEMPTED", 9, "2026-11-22T12:17:13")
    states = questions.select(attempts, questions.read_query([Ran(exit_code=0, out=out)]))
    assert {key.job_id: (state.phase.value, state.exit_code) for key, state in states.items()} == {
        "j0": ("ended", 0), "j1": ("ended", 3), "j2": ("running", None), "j3": ("pending", None), "j4": ("ended", 137),
    }  # fmt: skip
    assert states[Key("j2", 1)].handle == "12_2"
    assert (states[Key("j2", 1)].host, states[Key("j3", 1)].host) == ("n2", None)
    assert states[Key("j4", 1)].reason == PREEMPTED


def test_a_single_job_has_no_index() -> None:
    out = line(7, "N/A", 7, NAME, "RUNNING", 0, "N/A", 0, "n1", "None")
    (state,) = questions.select([attempt("a")], questions.read_query([Ran(exit_code=0, out=out)])).values()
    assert (state.handle, state.phase) == ("7", Phase.RUNNING)


def test_attempts_that_share_a_job() -> None:
    states = questions.select(
        [attempt("a"), attempt("b")], questions.read_query([Ran(exit_code=0, out=task(0, "RUNNING"))])
    )
    assert set(states) == {Key("a", 1), Key("b", 1)}


def test_a_twin() -> None:
    """Submitted twice: the one that lives counts, then the first."""
    first = line(7, "N/A", 7, NAME, "RUNNING", 0, "N/A", 0, "n1", "None")
    second = line(8, "N/A", 8, NAME, "FAILED", 256, "N/A", 0, "n1", "NonZeroExitCode")
    for out in (first + second, second + first):
        (state,) = questions.select([attempt("a")], questions.read_query([Ran(exit_code=0, out=out)])).values()
        assert state.handle == "7"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            Ran(exit_code=1, err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"),
            "squeue: slurm_load_jobs error: Unable to contact slurm controller (connect failure) (exit status 1)",
        ),
        (Ran(exit_code=None), "squeue was ended after its time limit"),
        (Ran(exit_code=1), "squeue: it printed nothing (exit status 1)"),
        (Failed(error="no such program: squeue", errno=errno.ENOENT), "squeue: no such program: squeue"),
    ],
)
def test_a_failed_query_is_no_absence(answer: Any, message: str) -> None:
    with pytest.raises(OutletError) as raised:
        questions.read_query([Ran(exit_code=0, out=task(0, "RUNNING")), answer])
    assert str(raised.value) == message


# scontrol and sacct

SHOWN = (
    "JobId=5 ArrayJobId=12 ArrayTaskId=2 JobName={name} UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 Nice=0"
    " Account=(null) QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1"
    " Reboot=0 ExitCode={status} RunTime=00:00:52 TimeLimit=01:00:00 PreemptEligibleTime=2026-11-22T12:15:50"
    " PreemptTime={preempted} SuspendTime=None Partition=low NodeList=n1 BatchHost=n1 NumNodes=1"
    " Comment=JobState=RUNNING PreemptTime=1 Command=/w/a b.sh\n"
)


def shown(name: str = NAME, state: str = "COMPLETED", **words: str) -> Ran:
    cells = {"reason": "None", "status": "0:0", "preempted": "None", **words}
    return Ran(exit_code=0, out=SHOWN.format(name=name, state=state, **cells))


GONE = Ran(exit_code=1, err="slurm_load_jobs error: Invalid job id specified\n")
NO_ACCOUNTING = Ran(exit_code=1, err="Slurm accounting storage is disabled\n")


def accounts(*rows: str) -> Ran:
    return Ran(exit_code=0, out="".join(f"{row}\n" for row in rows))


def detail(*answers: Any, handle: str | None = "12_2") -> Any:
    one = attempt("a", index=2, handle=handle)
    asked = questions.detail([one])
    assert len(asked) == len(answers)
    return questions.read_detail([one], answers).get(one.key)


def test_what_is_asked_in_detail() -> None:
    attempts = [attempt(f"j{index}", index=index, handle=f"12_{index}") for index in range(300)]
    scontrol, sacct = questions.detail(attempts)
    assert scontrol.words == ("scontrol", "show", "job", "--oneliner", "12")
    # Else the search would begin at midnight.
    assert "--starttime=now-30days" in sacct.words
    assert f"--name={NAME}" in sacct.words
    assert "--duplicates" in sacct.words


def test_details_of_the_controller() -> None:
    state = detail(
        shown(state="TIMEOUT", reason="TimeLimit", status="0:0", preempted="2026-11-22T12:17:13"), NO_ACCOUNTING
    )
    assert (state.phase, state.reason, state.was_preempted, state.host) == (Phase.ENDED, PREEMPTED, True, "n1")
    state = detail(shown(state="FAILED", reason="NonZeroExitCode", status="3:0"), NO_ACCOUNTING)
    assert (state.exit_code, state.was_preempted, state.handle) == (3, False, "12_2")


def test_an_id_that_belongs_to_somebody_else_now() -> None:
    assert detail(shown(name="theirs"), accounts()) is None
    assert detail(shown(name=f"{NAME}x"), accounts()) is None
    forged = f"theirs\nJobId=5 ArrayJobId=12 ArrayTaskId=2 JobName={NAME}"
    assert detail(Ran(exit_code=0, out=f"JobId=1 JobName={forged}\n"), accounts()) is None


@pytest.mark.parametrize(
    ("rows", "code", "reason"),
    [
        ([f"12_2|{NAME}|FAILED|3:0|n1"], 3, ""),
        ([f"12_2|{NAME}|CANCELLED by 1000|0:0|n1"], None, "cancelled"),
        # Requeued by SLURM: the second run was refused.
        ([f"12_2|{NAME}|PREEMPTED|0:0|n1", f"12_2|{NAME}|FAILED|1:0|n1"], None, PREEMPTED),
    ],
)
def test_details_of_accounting(rows: Sequence[str], code: int | None, reason: str) -> None:
    state = detail(GONE, accounts(*rows))
    assert (state.phase, state.exit_code, state.reason) == (Phase.ENDED, code, reason)
    assert detail(accounts(*rows), handle=None).reason == reason


@pytest.mark.parametrize(
    "rows",
    [
        # Accounting has missed the end, or has not heard of the job yet.
        [f"12_2|{NAME}|RUNNING|0:0|n1"],
        [],
        [f"12_1|{NAME}|FAILED|3:0|n1"],
        [f"12_[3-9]|{NAME}|CANCELLED|0:0|None assigned"],
        ["nonsense"],
    ],
)
def test_what_accounting_does_not_know(rows: Sequence[str]) -> None:
    assert detail(GONE, accounts(*rows)) is None


@pytest.mark.parametrize(
    "answer", [NO_ACCOUNTING, Failed(error="sacct: No such file or directory", errno=errno.ENOENT)]
)
def test_a_site_without_accounting(answer: Any) -> None:
    assert detail(GONE, answer) is None


@pytest.mark.parametrize(
    "answer",
    [
        Ran(exit_code=1, err="sacct: error: slurm_persist_conn_open_without_init: Connection refused\n"),
        Ran(exit_code=None),
    ],
)
def test_accounting_that_is_down_is_no_absence(answer: Any) -> None:
    state = detail(GONE, answer)
    assert state.phase is Phase.UNKNOWN
    assert state.why.startswith("sacct")
    # What the controller knows counts all the same.
    assert detail(shown(status="0:0"), answer).phase is Phase.ENDED


# sbatch


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Ran(exit_code=0, out="123\n"), Accepted(handle="123")),
        (Ran(exit_code=0, out="123;cluster2\n"), Accepted(handle="123")),
        (Ran(exit_code=0, out="Welcome! 5 jobs\n123\n"), Accepted(handle="123")),
        (
            Ran(
                exit_code=0,
                out="123\n",
                err="sbatch: error: Slurm temporarily unable, retrying\n",
            ),
            Accepted(handle="123"),
        ),
    ],
)
def test_accepted(answer: Ran, expected: Accepted) -> None:
    assert submitting.accepted(answer) == expected


@pytest.mark.parametrize(
    "answer",
    [
        Ran(exit_code=1, err="sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"),
        Ran(
            exit_code=1,
            err="sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
        ),
        Ran(exit_code=1, err="sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received\n"),
        Ran(exit_code=None),
        Ran(exit_code=-15),
        Ran(exit_code=0, out="Submitted\n"),
    ],
)
def test_doubtful(answer: Ran) -> None:
    assert isinstance(submitting.accepted(answer), Doubtful)


@pytest.mark.parametrize(
    ("err", "why"),
    [
        (
            "sbatch: error: invalid partition specified: gone\nsbatch: error: Batch job submission failed: Invalid "
            "partition name specified\n",
            "sbatch: error: invalid partition specified: gone (exit status 1)",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid feature specification\n",
            "sbatch: error: Batch job submission failed: Invalid feature specification (exit status 1)",
        ),
        (
            "sbatch: warning: can't run 1 processes on 2 nodes, setting nnodes to 1\n"
            "sbatch: error: Batch job submission failed: Invalid qos specification\n",
            "sbatch: warning: can't run 1 processes on 2 nodes, setting nnodes to 1 | error: Batch job submission "
            "failed: Invalid qos specification (exit status 1)",
        ),
    ],
)
def test_the_cause_is_named_and_not_what_is_concluded_from_it(err: str, why: str) -> None:
    found = submitting.accepted(Ran(exit_code=1, err=err))
    assert isinstance(found, Refused) and found.why == why


@pytest.mark.parametrize(
    ("text", "is_transient"),
    [
        ("Batch job submission failed: Invalid partition name specified", False),
        ("Batch job submission failed: Requested node configuration is not available", False),
        ("Batch job submission failed: Invalid account or account/partition combination specified", False),
        ("Batch job submission failed: Invalid qos specification", False),
        ("Batch job submission failed: Invalid job array specification", False),
        ("Memory specification can not be satisfied", False),
        ("sbatch: unrecognized option '--foo'", False),
        (
            "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Job violates accounting/QOS policy",
            True,
        ),
        ("AssocMaxSubmitJobLimit", True),
        ("Batch job submission failed: Required partition not available (inactive or drain)", True),
        ("Batch job submission failed: Slurm temporarily unable to accept job", True),
        ("Batch job submission failed: Protocol authentication error", True),
    ],
)
def test_refused(text: str, is_transient: bool) -> None:
    answer = submitting.accepted(Ran(exit_code=1, err=f"sbatch: error: {text}\n"))
    assert isinstance(answer, Refused)
    assert answer.is_transient is is_transient
    assert text.splitlines()[-1].removeprefix("sbatch: ") in answer.why


def test_a_program_that_is_missing() -> None:
    answer = submitting.accepted(Failed(error="no program sbatch", errno=errno.ENOENT))
    assert answer == Refused(why="sbatch: no program sbatch", is_transient=True)


CONFIG = """Configuration data as of 2026-11-22T12:15:50
MaxArraySize            = 1001
MaxJobCount             = 10000
SchedulerParameters     = bf_interval=1{more}
"""


@pytest.mark.parametrize(
    ("more", "associations", "account", "expected"),
    [
        ("", Ran(exit_code=1, err="You are not running a supported accounting_storage plugin\n"), None, (1001, None)),
        (",max_array_tasks=200", accounts(), None, (200, None)),
        ("", accounts("lab|500|", "other|20|10"), "lab", (1001, 500)),
        ("", accounts("lab|500|", "other|20|10"), None, (1001, 10)),
        ("", accounts("lab||300"), "lab", (1001, 300)),
        ("", accounts("lab||"), "lab", (1001, None)),
    ],
)
def test_limits(more: str, associations: Ran, account: str | None, expected: tuple[int | None, int | None]) -> None:
    config = Ran(exit_code=0, out=CONFIG.format(more=more))
    found = submitting.limits([config, associations], account)
    assert found == Limits(array_size=expected[0], in_flight=expected[1])


def test_limits_of_a_qos_and_of_a_site_that_tells_nothing() -> None:
    assert len(submitting.limits_query("long")) == 3
    config = Ran(exit_code=0, out=CONFIG.format(more=""))
    assert submitting.limits([config, accounts(), accounts("long|7|")], None).in_flight == 7
    failed = Ran(exit_code=1, err="slurm_load_ctl_conf error")
    assert submitting.limits([failed, failed], None) == Limits()


# scancel


def test_cancelled() -> None:
    assert cancelling.cancelled(Ran(exit_code=0)) == ""
    already = "scancel: error: Kill job error on job id 12_3: Job/step already completing or completed\n"
    assert cancelling.cancelled(Ran(exit_code=1, err=already)) == ""
    denied = "scancel: error: Kill job error on job id 5: Access/permission denied\n"
    assert "Access/permission denied" in cancelling.cancelled(Ran(exit_code=1, err=already + denied))
    assert "no answer" in cancelling.cancelled(None)
    assert cancelling.cancelled(Ran(exit_code=None)) == "scancel was ended after its time limit"


def test_one_call_for_all() -> None:
    (run,) = cancelling.cancel([attempt(f"j{index}", index=index) for index in range(500)], force=False)
    assert len(run.stdin.splitlines()) == 500
    assert cancelling.cancel([], force=True) == []


# several clusters


def test_every_call_names_the_configured_cluster() -> None:
    host = SlurmHost(name="hpc", cluster="hpc", clusters="alpha", qos="long")
    scheduler = SlurmScheduler(host, Hosts(hosts={"hpc": host}), Layout("/w"), 5.0)
    jobs = [attempt("a", handle="7")]
    asked = [
        scheduler.where().question,
        *scheduler.query(jobs),
        *scheduler.detail(jobs),
        *scheduler.cancel(jobs, force=False),
    ]
    asked += [*scheduler.limits_query(), *slurm_questions(host, 5.0, Path("/w"))]
    direct = [run for run in asked if isinstance(run, Run) and run.words[0] not in ("sh", "bash", "sacctmgr")]
    assert {run.words[0] for run in direct} == {"squeue", "scontrol", "sacct", "sinfo"}
    for run in direct:
        # Another one in the environment makes the program fail, whatever its options say.
        assert run.words[1] == "--clusters=alpha" and run.environment == {"SLURM_CLUSTERS": None}
    scripts = [run for run in asked if isinstance(run, Run) and run.words[0] in ("sh", "bash")]
    assert len(scripts) == 3 and all(run.environment == {"SLURM_CLUSTERS": "alpha"} for run in scripts)


@pytest.mark.parametrize(
    ("names", "told"), [("lab", "lab"), ("lab lab", "lab"), ("a b", "SLURM_CLUSTERS=a,b means several")]
)
def test_a_login_whose_modules_name_several_clusters(tmp_path: Path, names: str, told: str) -> None:
    lines = "".join(f"ClusterName             = {name}\n" for name in names.split())
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\nprintf '%s' '{lines}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CLUSTERS": names.replace(" ", ",")}
    done = subprocess.run(questions.where().words, env=variables, capture_output=True, text=True, check=False)
    assert (done.stdout.strip() == told) if done.returncode == 0 else told in done.stderr
    assert (done.returncode == 0) == (told == "lab")


@pytest.mark.parametrize(
    ("settings", "unset"),
    [
        ({}, set()),
        ({"account": "lab", "partitions": (Partition("low"),)}, {"SBATCH_ACCOUNT", "SBATCH_PARTITION"}),
        ({"qos": "long", "sbatch_args": ("--reservation=r",)}, {"SBATCH_QOS", "SBATCH_RESERVATION"}),
    ],
)
def test_what_is_configured_comes_before_the_modules_of_a_site(settings: dict[str, Any], unset: set[str]) -> None:
    host = SlurmHost(name="hpc", cluster="hpc", **settings)
    assert set(own_variables(host_for(host, Request(0)), None)) == unset


def test_options_of_a_job_come_before_the_modules_of_a_site() -> None:
    request = Request(0, slurm=SlurmOptions(partition="fast"))
    host = SlurmHost(name="hpc", cluster="hpc")
    assert set(own_variables(host_for(host, request), "team")) == {"SBATCH_PARTITION", "SBATCH_WCKEY"}
