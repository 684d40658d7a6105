"""What a pod prints: times, what still runs when it drains, and what it has done."""

from __future__ import annotations

import re
import signal

from fleet import Fleet, shell

UNTIL_GO = "echo begun; until [ -e go ]; do sleep 0.02; done"
HALF_DONE = f"""echo '{{"step": 30, "of": 60}}' > "$DISPATCHER_ATTEMPT_DIR/progress.json"; {UNTIL_GO}"""


def test_a_pod_that_drains_says_what_runs_and_at_the_end_what_it_has_done(fleet: Fleet) -> None:
    fleet.write_config("methods:\n  m: {retries: 1, retry_on: [exit 5], backoff: 0.05}\n")
    fleet.write_manifest(
        [
            shell("good", "true"),
            shell("bad", "exit 3"),
            shell("flaky", 'exit $(( 5 * (DISPATCHER_ATTEMPT == 1) ))'),
            shell("half", HALF_DONE),
            shell("limited", UNTIL_GO, time_limit="3h"),
            shell("silent", UNTIL_GO),
        ]
    )  # fmt: skip
    pod = fleet.start("pod", "--slots", "4")
    fleet.wait_for("flaky", "done")
    for job in ("half", "limited", "silent"):
        fleet.wait_running(job)
    pod.send(signal.SIGTERM)
    said = pod.says("silent: runs for ")
    assert re.search(r"3 jobs still running, for about [\dhms]+ or longer\n", said)
    assert re.search(r"  half: 50% 30/60, about [\dhms]+ left\n", said)
    assert re.search(r"  limited: runs for [\dhms]+, at most 2h5\dm left \(time limit\)\n", said)
    assert re.search(r"  silent: runs for [\dhms]+, reports no progress\n", said)
    (fleet.root / "go").touch()
    pod.end()
    last = pod.said.splitlines()[-1]
    ends = r"5 done, 1 failed \(exit 3: 1\), 1 requeued \(exit 5: 1\)"
    assert re.fullmatch(rf"[\d:]{{8}} ended after [\dhms]+: {ends}", last), last


def test_what_jobs_say_does_not_control_the_terminal_of_a_pod(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", r"printf 'ValueError: \033]0;title\007 \302\2332J\n'; exit 3")])
    said = fleet.run_all().said
    assert "failed a (attempt 1): exit 3: ValueError: ?]0;title? ?2J\n" in said
    assert not {"\x1b", "\x07", "\x9b"} & set(said)


def test_a_pod_that_leaves_says_how_many_jobs_go_on(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", UNTIL_GO)])
    pod = fleet.start("pod", "--on-exit", "leave")
    fleet.wait_running("a")
    pod.send(signal.SIGTERM)
    pod.end()
    assert re.search(r"left after [\dhms]+: no job has ended; 1 job keeps running\n", pod.said)
    (fleet.root / "go").touch()
    fleet.wait_gone("a")


def test_the_lines_of_a_pod_have_local_times_and_the_first_one_the_date(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    # Half a day from UTC, so that the two cannot be taken for one another.
    pod = fleet.run_all(TZ="XXX-12")
    first, *rest = pod.said.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d pod pod on ", first)
    assert rest
    assert all(re.match(r"\d\d:\d\d:\d\d \w", line) for line in rest), rest
    claimed = next(line for line in fleet.history("a") if line.event == "claimed")
    assert (int(first[11:13]) - int(claimed.at[11:13])) % 24 in (11, 12)
    in_utc = fleet.run_all("--utc", pod="other", TZ="XXX-12")
    assert re.match(r"[\d-]{10} [\d:]{8}Z pod other on ", in_utc.said)
