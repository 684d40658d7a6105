"""Which line of a log says what went wrong."""

from __future__ import annotations

import pytest

from dispatcher.pod.error_line import last_error_line, until_first_end

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
{}"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("ValueError: bad\ncleaning up", "ValueError: bad"),
        ("jaxlib.XlaRuntimeError: INTERNAL: x\nstep 3/10 loss 2.1", "jaxlib.XlaRuntimeError: INTERNAL: x"),
        (TRACEBACK.format("KeyError: 0.5"), "KeyError: 0.5"),
        (TRACEBACK.format("lab.Diverged: loss is nan"), "lab.Diverged: loss is nan"),
        (TRACEBACK.format("lab.Diverged\n 12%|#2   | 12/100 [00:01<00:08, 11.2it/s]"), "lab.Diverged"),
        ("[rank0]: " + TRACEBACK.replace("\n", "\n[rank0]: ").format("lab.Diverged: x"), "[rank0]: lab.Diverged: x"),
        ("step 120/1000: FloatingPointError: loss is nan", "step 120/1000: FloatingPointError: loss is nan"),
        ("train.c:3: error: no such thing", "train.c:3: error: no such thing"),
        ("srun: error: node1: task 0: Exited", "srun: error: node1: task 0: Exited"),
        (
            "ValueError: mine\nsrun: error: n2: task 1: Exited with exit code 9\nsrun: launch/slurm: _step_signal: x\n"
            "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-27T17:24:25 ***\nKeyboardInterrupt",
            "ValueError: mine",
        ),
        (
            "srun: error: n2: task 1: Exited with exit code 9\nKeyboardInterrupt",
            "srun: error: n2: task 1: Exited with exit code 9",
        ),
        (
            "the end of output.1.log:\nKeyError: 1\ndispatcher: error: n2: exit status 1\nKeyboardInterrupt",
            "KeyError: 1",
        ),
        ("mount: failed\ndispatcher: error: setup: exit status 3", "dispatcher: error: setup: exit status 3"),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-27T17:24:25 DUE TO TIME LIMIT ***",
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-27T17:24:25 DUE TO TIME LIMIT ***",
        ),
        ("step 3\nbash: line 1: trian: command not found", "bash: line 1: trian: command not found"),
        ("Segmentation fault (core dumped)\nEpoch 3: loss 0.2", "Segmentation fault (core dumped)"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("panic: index out of range", "panic: index out of range"),
        (
            "dispatcher: note: code 0123 in /work failed on n1\nKeyError: 'x'\ndispatcher: warning: error",
            "KeyError: 'x'",
        ),
        (
            "bash: line 1: /usr/bin/echo: cannot execute\nbash: line 1: /usr/bin/echo: Success",
            "bash: line 1: /usr/bin/echo: cannot execute",
        ),
        (
            "dispatcher: training.mesh = {'data': 8}: 8 for 4 devices\nbye",
            "dispatcher: training.mesh = {'data': 8}: 8 for 4 devices",
        ),
    ],
)
def test_lines_that_look_like_an_error(log: str, expected: str) -> None:
    assert last_error_line(until_first_end(log.splitlines())) == expected


@pytest.mark.parametrize(
    "log",
    [
        "",
        "one\ntwo",
        "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-27T17:24:25 ***\nTerminated",
        "step 120/1000 loss 2.31",
        "step 120/1000 loss 2.31 error 0.3",
        "Epoch 3: train error: 0.21, failed batches 0",
        "  5%|5    | 5/100 [00:00<00:08, 11.2it/s, error=0.1]",
        "[12/300] validation error 0.4",
        "eval step 7 error rate 3",
        "MeanSquaredError: 0.21",
        "MeanSquaredError=0.21",
        "finished with 0 errors",
        "done without error",
        "terror and errors of old",
        "dispatcher: warning: progress cannot be reported: the disk is full",
    ],
)
def test_progress_is_no_error(log: str) -> None:
    assert last_error_line(log.splitlines()) is None


def test_a_bar_that_is_drawn_over_and_over_is_many_lines() -> None:
    log = "ValueError: bad\n" + "\r".join(f"{n}%|   | {n}/100 [00:01<00:08, 9.9it/s]" for n in range(30))
    assert last_error_line(log.splitlines()) == "ValueError: bad"


def test_a_long_line_is_cut() -> None:
    assert len(last_error_line(["Error: " + "x" * 5000]) or "") <= 300
