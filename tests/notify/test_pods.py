"""Real pods that tell people: what is told, that it is told once, and what becomes of it when pods die."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from fleet import COMMAND, Fleet, shell, wait_until
from told_notices import configure, events, keeping, lines, told
from told_servers import hook, mail_server

pytestmark = pytest.mark.slow
# Tries again at once what was refused.
_IMPATIENT = "from dispatcher.notify import schedule; schedule.RETRIES_S = (0.1, 0.2, 0.3)"
HANGS = ["sh", "-c", "cat > got; exec sleep 600"]


def ends(fleet: Fleet) -> list[str]:
    """How notices ended, in order."""
    return [str(one["state"]) for one in lines(fleet, "notice_ended")]


def status(fleet: Fleet) -> str:
    """What `status` notes."""
    return fleet.try_("status").stderr


def end_orphans(fleet: Fleet) -> None:
    """What a notice was being sent with when its pod was killed."""
    for pid, words in fleet.pids().items():
        if words.startswith("sleep ") or "notify.child" in words:
            os.kill(pid, signal.SIGKILL)


def claims(fleet: Fleet) -> int:
    return len(lines(fleet, "notice_claimed"))


def test_three_pods_tell_once_that_jobs_failed(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    configure(fleet, {"chat": {"command": keeping(kept), "events": ["job_failed"]}}, after="3s")
    fleet.write_manifest([shell(f"a{number}", "exit 3") for number in range(4)])
    pods = [fleet.start(f"pod-{number}", poll="0.5") for number in range(3)]
    wait_until(lambda: ends(fleet), "a notice was sent")
    for pod in pods:
        pod.stop()
    notices = told(kept)
    assert events(notices) == [("job_failed", 4)] and notices[0]["events"][0]["cause"] == "exit 3"
    assert sorted(notices[0]["events"][0]["jobs"]) == ["a0", "a1", "a2", "a3"]
    assert ends(fleet) == ["sent"]
    shown = fleet.run("show", "a0").partition("notices that name it\n")[2]
    assert "chat" in shown and "sent" in shown and "4 jobs failed" in shown
    assert [row["target"] for row in json.loads(fleet.run("show", "a0", "--json"))["notices"]] == ["chat"]


def test_three_pods_send_one_mail_and_one_post(fleet: Fleet) -> None:
    with hook(200) as server, mail_server() as post:
        mail = {
            "host": "127.0.0.1",
            "port": post.port,
            "tls": "none",
            "from": "lab@example.org",
            "to": "ada@example.org",
        }
        targets = {"web": {"webhook": {"url": server.url}}, "mail": {"smtp": {**mail, "to": "ada@example.org"}}}
        configure(fleet, {name: {**target, "events": ["matrix_done"]} for name, target in targets.items()})
        fleet.write_manifest([shell(f"a{number}", "true") for number in range(6)])
        pods = [fleet.start(f"pod-{number}", poll="0.3") for number in range(3)]
        wait_until(lambda: len(ends(fleet)) == 2, "both were sent")
        for pod in pods:
            pod.stop()
        assert ends(fleet) == ["sent", "sent"] and len(server.got) == len(post.got) == 1
        [message] = post.got
        assert message["Subject"].endswith(": all jobs have ended") and "6 done" in message.get_content()
        assert "6 done" in server.got[0]["text"] and post.recipients == ["ada@example.org"]


def test_each_of_many_notices_arrives_once_although_pods_are_killed(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    configure(
        fleet,
        {"chat": {"command": keeping(kept), "events": ["job_failed"]}},
        "heartbeat: 0.2s\nlost_after: 5s",
        after="0.1s",
        per_hour=100,
    )
    entries = [shell(f"a{number}", f"exit {10 + number}") for number in range(12)]
    fleet.write_manifest(entries[:4])
    pods = [fleet.start(f"pod-{number}", poll="0.3") for number in range(3)]
    for number in range(2):
        wait_until(lambda count=number: claims(fleet) > count, "a notice is being sent")
        pods[number].kill()
        pods[number] = fleet.start(f"pod-{number}", poll="0.3")
        fleet.write_manifest(entries[: 8 + 4 * number])
    wait_until(lambda: sorted(fleet.states().values()) == ["failed"] * 12, "all jobs have failed")

    def all_are_settled() -> bool:
        state = json.loads(fleet.run("notify", "--json"))
        return bool(state) and not any(row["state"] in ("sending", "waiting") or row["until"] for row in state)

    wait_until(all_are_settled, "all notices are settled")
    for pod in pods:
        pod.stop()
    causes = [one["cause"] for notice in told(kept) for one in notice["events"]]
    ids = [notice["id"] for notice in told(kept)]
    assert len(ids) == len(set(ids)), "no notice arrived twice"
    assert len(causes) == len(set(causes)), "no cause was told twice"
    # What is missing was under way when its sender was killed, and is known to be doubtful.
    doubtful = [row for row in json.loads(fleet.run("notify", "--json")) if row["state"] == "doubtful"]
    unsure = {one["cause"] for row in doubtful for one in row["events"]}
    assert {f"exit {10 + number}" for number in range(12)} - set(causes) <= unsure
    assert len(doubtful) <= 2


def test_a_notice_whose_sender_was_killed_is_doubtful_shown_and_not_sent_again(fleet: Fleet) -> None:
    configure(fleet, {"chat": {"command": HANGS, "events": ["job_failed"]}}, "heartbeat: 0.2s\nlost_after: 5s",
              timeout="300s")  # fmt: skip
    fleet.write_manifest([shell("a", "exit 3")])
    pod = fleet.start("pod", poll="0.3")
    wait_until((fleet.root / "got").exists, "the notice is being sent")
    # The order in which everything dies: the pod before it can say how it went.
    pod.kill()
    sent = (fleet.root / "got").read_text()
    assert "1 notice to chat may not have arrived" in status(fleet)
    assert "doubtful" in fleet.run("notify")
    other = fleet.start("other", poll="0.3")
    wait_until(lambda: ends(fleet), "the other one records that")
    assert ends(fleet) == ["doubtful"] and claims(fleet) == 1
    other.stop()
    end_orphans(fleet)
    fleet.run_all()
    assert claims(fleet) == 1 and (fleet.root / "got").read_text() == sent
    assert "1 notice to chat may not have arrived" in status(fleet)
    [row] = json.loads(fleet.run("notify", "--json"))
    assert row["state"] == "doubtful" and row["events"][0]["jobs"] == ["a"]
    assert "1 notice dismissed" in fleet.run("notify", "--clear")
    assert "may not have arrived" not in status(fleet) and "nothing to dismiss" in fleet.run("notify", "--clear")


def test_what_was_refused_is_tried_again_and_arrives(fleet: Fleet) -> None:
    fleet.command = [sys.executable, "-P", "-c", f"{_IMPATIENT}; {COMMAND[-1]}"]
    with hook(500, 503, 200) as server:
        configure(fleet, {"web": {"webhook": {"url": server.url}, "events": ["job_failed"]}})
        fleet.write_manifest([shell("a", "exit 3")])
        pods = [fleet.start(f"pod-{number}", poll="0.3") for number in range(3)]
        wait_until(lambda: "sent" in ends(fleet), "it has arrived")
        for pod in pods:
            pod.stop()
        assert ends(fleet) == ["failed", "failed", "sent"] and claims(fleet) == 3
        assert [one["try"] for one in server.got] == [1, 2, 3] and len({one["id"] for one in server.got}) == 1
    assert "s3cret-path" not in str(fleet.history()) + "".join(pod.said for pod in pods) + fleet.run("notify")


def test_what_is_refused_again_and_again_has_failed_and_a_person_is_shown(fleet: Fleet) -> None:
    fleet.command = [sys.executable, "-P", "-c", f"{_IMPATIENT}; {COMMAND[-1]}"]
    configure(fleet, {"chat": {"command": ["sh", "-c", "echo no luck >&2; exit 1"], "events": ["job_failed"]}})
    fleet.write_manifest([shell("a", "exit 3")])
    pod = fleet.start("pod", poll="0.3")
    wait_until(lambda: len(ends(fleet)) == 4, "all tries have failed")
    assert "exit 1: no luck; `dispatcher notify` shows it" in pod.says("shows it")
    pod.stop()
    assert "1 notice to chat could not be sent (1 job failed; exit 1: no luck)" in status(fleet)
    assert claims(fleet) == 4


def test_done_is_told_again_after_further_jobs(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    configure(fleet, {"chat": {"command": keeping(kept), "events": ["matrix_done"]}})
    entries = [shell(f"a{number}", "true") for number in range(3)]
    fleet.write_manifest(entries)
    pods = [fleet.start(f"pod-{number}", poll="0.3") for number in range(2)]
    wait_until(lambda: len(told(kept)) == 1, "done is told")
    fleet.write_manifest([*entries, *(shell(f"b{number}", "true") for number in range(5))])
    wait_until(lambda: len(told(kept)) == 2, "done is told again")
    for pod in pods:
        pod.stop()
    # What starts in a workspace that is done has no news.
    fleet.run_all()
    assert events(told(kept)) == [("matrix_done", 1), ("matrix_done", 1)]
    assert [notice["events"][0]["cause"] for notice in told(kept)] == [
        "no job is left to run: 3 done", "no job is left to run: 8 done"
    ]  # fmt: skip


def test_a_pod_that_starts_in_an_old_workspace_has_no_news(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    fleet.write_manifest([shell("a", "exit 3"), shell("b", "true")])
    fleet.run_all()
    configure(fleet, {"chat": {"command": keeping(kept)}})
    fleet.run_all()
    assert told(kept) == [] and claims(fleet) == 0
    fleet.write_manifest([shell("a", "exit 3"), shell("b", "true"), shell("c", "exit 4")])
    fleet.run_all()
    # A pod that ends tells what is left before it does.
    assert events(told(kept)) == [("job_failed", 1), ("matrix_done", 1)]
    assert told(kept)[0]["events"][0]["jobs"] == ["c"]


def test_pods_tell_of_a_dead_one_and_cron_of_the_last(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    configure(fleet, {"chat": {"command": keeping(kept), "events": ["pod_dead"]}}, "heartbeat: 0.2s\nlost_after: 5s")
    fleet.write_manifest([shell("a", "exec sleep 600")])
    pods = [fleet.start(f"pod-{number}", poll="0.3") for number in range(3)]
    for pod in pods:
        pod.ready()
    pods[0].kill()
    wait_until(lambda: told(kept), "the others tell of it")
    # Whether that was recorded in time or not.
    pods[1].kill()
    pods[2].kill()
    printed = fleet.run("notify", "--once")
    assert printed.startswith("chat: sent: pod pod-") and "is dead" in printed
    assert fleet.run("notify", "--once") == ""
    causes = [one["cause"] for notice in told(kept) for one in notice["events"]]
    assert sorted(cause.partition(" on ")[0] for cause in causes) == ["pod pod-0", "pod pod-1", "pod pod-2"]
    # One that is started again is alive, and may die again.
    fleet.start("pod-1", poll="0.3").ready()
    wait_until(lambda: any("over" in one for one in lines(fleet, "incident")), "it is over")
    fleet.run("cancel", "a")
    fleet.wait_for("a", "abandoned")


def test_jobs_that_wait_while_nothing_runs_are_told(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    configure(fleet, {"chat": {"command": keeping(kept)}}, nothing_running_after="1s")
    fleet.write_manifest([shell("a", "true"), shell("b", "true", needs=["c"]), shell("c", "true", gpus=1)])
    pod = fleet.start("pod", poll="0.3")
    wait_until(lambda: told(kept), "that is told")
    pod.stop()
    assert events(told(kept)) == [("nothing_running", 1)]
    assert told(kept)[0]["events"][0]["cause"] == "2 jobs wait, and none runs"


def test_a_pod_that_gives_up_tells_what_it_leaves(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    configure(fleet, {"chat": {"command": keeping(kept)}})
    fleet.write_manifest([shell("a", "true"), shell("c", "true", gpus=1)])
    fleet.run_all()
    assert events(told(kept)) == [("nothing_running", 1)]
    # Nor is cron told so again.
    fleet.run("notify", "--once")
    assert len(told(kept)) == 1


def test_a_job_that_stalls_is_told_of_once(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    target = {"command": keeping(kept), "events": ["job_stalled"]}
    configure(fleet, {"chat": target}, "methods: {m: {stall_after: 1s}}")
    reports = 'report() { echo "{\\"step\\": $1, \\"of\\": 9}" > "$DISPATCHER_ATTEMPT_DIR/progress.json"; }; report 1; '
    fleet.write_manifest([shell("a", f"{reports} until [[ -e '{tmp_path}/go' ]]; do sleep 0.1; done; "
                                     "while sleep 0.2; do report 2; done")])  # fmt: skip
    for number in range(2):
        fleet.start(f"pod-{number}", poll="0.3")
    wait_until(lambda: told(kept), "that is told")
    assert events(told(kept)) == [("job_stalled", 1)] and told(kept)[0]["events"][0]["jobs"] == ["a"]
    (tmp_path / "go").touch()
    wait_until(lambda: any("over" in one for one in lines(fleet, "incident")), "it goes on")
    fleet.run("cancel", "a")
    fleet.wait_for("a", "abandoned")
    assert len(told(kept)) == 1


def test_a_pause_after_failures_is_told_and_one_by_a_person_is_not(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    configure(fleet, {"chat": {"command": keeping(kept), "events": ["method_paused"]}})
    fleet.write_manifest([shell(f"a{number}", "exit 3") for number in range(6)])
    pod = fleet.start("pod", poll="0.3")
    wait_until(lambda: told(kept), "the pause is told")
    fleet.run("unpause", "m")
    fleet.run("pause", "m", "--why", "enough")
    pod.stop()
    assert events(told(kept)) == [("method_paused", 1)]
    assert told(kept)[0]["events"][0]["cause"].startswith("m is paused: 5 jobs failed alike: exit 3")


def test_a_pod_whose_targets_cannot_work_refuses_to_start(fleet: Fleet, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("https://example.org/hunter2\n")
    secret.chmod(0o644)
    configure(fleet, {"web": {"webhook": {"url_file": str(secret)}}, "own": {"command": ["no-such-command"]}})
    fleet.write_manifest([shell("a", "true")])
    refused = fleet.run_all()
    assert refused.end() == 1
    assert f"notify.targets.web.webhook.url_file: {secret} can be read by others: `chmod 600 {secret}`" in refused.said
    assert "notify.targets.own.command: no-such-command: there is no such command on this host" in refused.said
    assert "hunter2" not in refused.said and fleet.claimed() == []
    # Others may look nevertheless.
    assert "1 job" in fleet.run("status")
    tested = fleet.try_("notify", "--test")
    assert tested.returncode == 1 and "web: failed: webhook.url_file" in tested.stdout


@pytest.mark.parametrize("is_faster", [False, True])
def test_a_pod_does_not_wait_for_a_notice(fleet: Fleet, is_faster: bool) -> None:
    configure(fleet, {"chat": {"command": HANGS, "events": ["job_failed"]}}, timeout="300s")
    fleet.write_manifest([shell("a", "exit 3"), *(shell(f"b{number}", "true") for number in range(5))])
    pod = fleet.start("pod", poll="0.3")
    wait_until((fleet.root / "got").exists, "the notice is being sent")
    fleet.write_manifest([shell("c", "true")])
    fleet.wait_for("c", "done")
    # To wait for it at the end, too, a person can refuse; also one who is faster than the pod.
    if is_faster:
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            pod.send(number)
    else:
        pod.send(signal.SIGTERM)
        pod.says("draining")
        pod.send(signal.SIGINT)
    assert pod.end() == 1 and claims(fleet) == 1
    assert "doubtful" in fleet.run("notify")
