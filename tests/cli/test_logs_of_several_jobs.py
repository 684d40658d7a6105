"""`logs` of several jobs, with `--grep`, and with `-f` from before they run."""

from __future__ import annotations

import os
import subprocess

import pytest

from dispatcher.cli.wait_notes import _waiting_text
from dispatcher.run_state import liveness
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State

GERMAN = ("fft_german_s1", "fft_german_s2", "lora_german_s1")


@pytest.fixture
def german(lab):
    for job in GERMAN:
        lab.put(job, "failed", reason="exit 1")
        lab.attempt(job, 1, log=f"begun {job}\nstep 1\nValueError: {job[-1]}\n")
    return lab


def test_several_logs_have_headings(german):
    assert german.run("logs", "lora_german_s1", "fft_german_s1").out == (
        "==> fft_german_s1 <==\nbegun fft_german_s1\nstep 1\nValueError: 1\n"
        "\n==> lora_german_s1 <==\nbegun lora_german_s1\nstep 1\nValueError: 1\n"
    )
    german.attempt("fft_german_s1", 1, log="")
    by_filter = german.run("logs", "--where", "method=fft", "--state", "failed", "-n", "1")
    assert by_filter.out == "==> fft_german_s1 <==\n\n==> fft_german_s2 <==\nValueError: 2\n"
    outcome = german.run("logs", "fft*", "-n", "1")
    assert "spanish" not in outcome.out
    assert (outcome.code, outcome.err) == (0, "note: 2 jobs have no log\n")
    for words in (("fft*", "--attempt", "4"), ("--state", "queued"), ("fft_german_s1", "--attempt", "4"), ("base",)):
        assert german.run("logs", *words).code == 1, "there is no log at all"
    nothing = german.run("logs", "fft_german_s1", "--where", "seed=2")
    assert (nothing.code, nothing.err) == (1, "note: no job matches\n")
    assert "no job matches" in german.run("logs", "nope*").err
    assert "name the jobs" in german.run("logs").err


def test_grep_shows_the_jobs_with_a_match(german):
    assert german.run("logs", "*", "--grep", r"Error: [2]$").out == "==> fft_german_s2 <==\nValueError: 2\n"
    # The heading of the first one is the first line, whichever job it is of.
    both = german.run("logs", "*_german_*", "--grep", "begun .*s1|nothing")
    assert both.out == "==> fft_german_s1 <==\nbegun fft_german_s1\n\n==> lora_german_s1 <==\nbegun lora_german_s1\n"
    assert both.code == 0
    one = german.run("logs", "fft_german_s1", "--grep", "^step")
    assert (one.code, one.out) == (0, "step 1\n")
    nothing = german.run("logs", "*_german_*", "--grep", "no such words")
    assert (nothing.code, nothing.out) == (1, "")
    # As `tail -n 1 | grep` would.
    assert german.run("logs", "fft_german_s1", "-n", "1", "--grep", "step").code == 1


def test_grep_of_bytes_that_are_no_text_and_of_a_last_line_without_an_end(german):
    log = german.layout.attempt("fft_german_s1", 1).log
    log.write_bytes(b"gr\xc3\xb6\xc3\x9fer \xff\xfe loss\n" + b"x" * 200_000 + b"\nloss 2")
    for pattern, line in (("größer", b"gr\xc3\xb6\xc3\x9fer \xff\xfe loss\n"), (r"^loss \d$", b"loss 2\n")):
        process = german.start("logs", "fft_german_s1", "--grep", pattern, stdout=subprocess.PIPE)
        assert process.communicate(timeout=30)[0] == line


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "(?P<a", "*"])
def test_a_pattern_that_is_none_is_named(german, pattern):
    outcome = german.run("logs", "fft_german_s1", "--grep", pattern)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"--grep {pattern}: not a regular expression" in outcome.err
    assert "Traceback" not in outcome.err


def claim(lab, job, number):
    """A dispatcher takes the job; the log of its attempt and what its processes hold."""
    with lab.workspace.transaction() as tx:
        if tx.record(job) is None:
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
        tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=number, pod="pod-0"))
    directory = lab.attempt(job, number, log="", alive="")
    lock = liveness.take(directory / "alive")
    assert lock is not None
    return open(directory / "output.log", "w", buffering=1), lock


def end(lab, job, number, attempt, event, change):
    log, lock = attempt
    log.close()
    with lab.workspace.transaction() as tx:
        tx.change(job, event, change)
    lab.attempt(job, number, exit='{"exit_code": 0}')
    os.close(lock)


def follow(lab, *words):
    return lab.start("logs", "-f", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_following_waits_for_a_queued_job_and_goes_on_until_it_has_ended(lab):
    process = follow(lab, "base")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == b"note: base waits: no pod is running\n"
    attempt = claim(lab, "base", 1)
    print("one", file=attempt[0])
    assert process.stdout.readline() == b"one\n"
    end(lab, "base", 1, attempt, Event.RETRIED, Change(state=State.QUEUED, reason="exit 1"))
    assert process.stderr.readline() == b"note: base waits: no pod is running\n"
    attempt = claim(lab, "base", 2)
    print("two", file=attempt[0])
    assert process.stderr.readline() == b"note: base runs again (attempt 2)\n"
    assert process.stdout.readline() == b"two\n"
    end(lab, "base", 2, attempt, Event.DONE, Change(state=State.DONE))
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == (b"", b"", 0)


def test_following_leaves_out_no_attempt_however_short(lab):
    process = follow(lab, "base")
    assert process.stderr is not None
    assert process.stderr.readline() == b"note: base waits: no pod is running\n"
    ends = [(Event.RETRIED, Change(state=State.QUEUED, reason="exit 1")), (Event.DONE, Change(state=State.DONE))]
    for number, (event, change) in enumerate(ends, 1):
        attempt = claim(lab, "base", number)
        print("attempt", number, file=attempt[0])
        end(lab, "base", number, attempt, event, change)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == (b"attempt 1\nattempt 2\n", 0)


def test_following_several_jobs_names_them_in_each_line(german):
    process = follow(german, "lora_german_*", "--grep", "Error|loss")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == b"note: 1 job has ended: not followed\n"
    assert process.stderr.readline() == b"note: lora_german_s2 waits: needs base (queued)\n"
    attempt = claim(german, "lora_german_s2", 1)
    attempt[0].write("step 1\nloss 2")
    attempt[0].write(".5\nstep 2\nlast loss")
    assert process.stdout.readline() == b"lora_german_s2: loss 2.5\n"
    end(german, "lora_german_s2", 1, attempt, Event.DONE, Change(state=State.DONE))
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == (b"lora_german_s2: last loss\n", 0)


def test_following_what_has_ended_or_never_ran_ends(german):
    german.put("fft_spanish_s1", "queued")
    german.run("cancel", "fft_spanish_s1")
    process = follow(german, "fft_spanish_s1")
    out, err = process.communicate(timeout=30)
    assert (out, err) == (b"", b"note: fft_spanish_s1 has not run: there is no log (state: abandoned)\n")
    process = follow(german, "fft_german_s1", "--grep", "nothing of this")
    assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 1


def test_a_claim_that_was_not_sent_to_its_host_yet_is_waited_for(lab):
    """Until it is, its files look like those of a job of this host that was killed."""
    lab.put("base", "running", outlet="far")
    directory = lab.attempt("base", 1, alive="")
    process = follow(lab, "base")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=4)
    (directory / "output.log").write_text("brought home\n")
    (directory / "exit.json").write_text('{"exit_code": 0}')
    assert process.communicate(timeout=30) == (b"brought home\n", b"")


def test_a_reader_that_goes_away_ends_the_following(german):
    attempt = claim(german, "base", 1)
    process = follow(german, "base", "fft_german_s2")
    assert process.stdout is not None
    assert process.stdout.readline() == b"fft_german_s2: begun fft_german_s2\n"
    process.stdout.close()
    for number in range(3):
        print(number, file=attempt[0])
    assert process.wait(timeout=30) == 141
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    end(german, "base", 1, attempt, Event.DONE, Change(state=State.DONE))


@pytest.mark.parametrize(
    ("jobs", "why", "text"),
    [
        (["a"], "no pod is running", "a waits: no pod is running"),
        (["a"], "waits for a free slot", "a waits for a free slot"),
        (["a", "b"], "waits for a free slot", "2 jobs wait (a, b) for a free slot"),
        (["a", "b"], "needs c (queued)", "2 jobs wait (a, b): needs c (queued)"),
    ],
)
def test_why_jobs_wait_is_one_sentence(jobs, why, text):
    assert _waiting_text(jobs, why) == text
