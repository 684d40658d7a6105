"""The ways to send a notice, against real servers and programs: what arrives, and what is said when it does not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from one_try import AT, notice, private, sent, target
from told_servers import hook, mail_server

from dispatcher.base.schema.faults import PartsError
from dispatcher.notify.checks import faults_in
from dispatcher.notify.process import Outcome, SendingProcess
from dispatcher.notify.text import payload
from dispatcher.notify_config import parse_notify
from dispatcher.run_state.facets.notices import Cause

SECRET = "hunter2-s3cret"


def test_subjects_are_short_and_texts_tell_scopes_and_times_in_one_zone() -> None:
    paused = "lora is paused: 5 jobs failed alike: exit 1: ValueError: rank 64 (lora_s1, lora_s2)"
    dead = "pod gpu-b on node-2 is dead since 2026-06-17T10:00:00.123Z"
    idle = "running, its GPUs idle since 2026-06-17T09:30:00Z"
    error = "exit 1: no data of 2026-06-17T09:30:00Z"
    topics = {"method_paused": paused, "pod_dead": dead, "gpu_idle": idle, "job_failed": error}
    known = {"count": 1, "first_at": AT, "last_at": AT, "jobs": ()}
    causes = {topic: Cause(topic=topic, text=text, **known) for topic, text in topics.items()}
    got = payload("lab", "t", 7, causes, 1, "0123", ZoneInfo("Europe/Berlin"))
    assert got["subject"] == (
        "dispatcher lab: pod gpu-b on node-2 is dead, lora is paused, 1 job failed, 1 job leaves its GPU idle"
    )
    lines = got["text"].splitlines()
    assert any(line.startswith(f"{paused} (") for line in lines) and "  `dispatcher unpause lora` continues" in lines
    assert any(line.startswith("pod gpu-b on node-2 is dead since 2026-06-17 12:00:00 CEST (") for line in lines)
    assert any("GPUs idle since 2026-06-17 11:30:00 CEST (" in line for line in lines)
    # What a job has written stays as it is.
    assert any(line.startswith(f"job failed: {error} (") for line in lines)


def test_a_webhook_gets_the_notice_as_json() -> None:
    with hook(200) as server:
        assert sent(target(webhook={"url": server.url, "headers": {"X-Lab": "asr"}})) == Outcome("sent")
        [got] = server.got
    assert got == notice()
    assert got["id"] == "0123.7.t" and got["subject"] == "dispatcher lab: 1 job failed"
    assert server.headers[0]["X-Lab"] == "asr" and server.headers[0]["Content-Type"] == "application/json"


@pytest.mark.parametrize(("form", "key"), [("slack", "text"), ("discord", "content")])
def test_a_webhook_gets_what_the_service_expects(form: str, key: str) -> None:
    with hook(204) as server:
        assert sent(target(webhook={"url": server.url, "format": form})).state == "sent"
        [got] = server.got
    assert got[key] == notice()["text"] and "events" not in got


def test_an_error_calls_nobody_in_a_chat() -> None:
    with hook(200) as server:
        assert (
            sent(target(webhook={"url": server.url, "format": "slack"}), notice("<!channel> & <module>")).state
            == "sent"
        )
        [got] = server.got
    assert "&lt;!channel&gt; &amp; &lt;module&gt;" in got["text"] and "<" not in got["text"]


@pytest.mark.parametrize(
    ("answer", "state", "why"),
    [
        (500, "failed", "answered 500 Internal Server Error"),
        (404, "failed", "answered 404 Not Found"),
        # A redirected POST would arrive as a GET, which delivers nothing.
        (302, "failed", "answered 302 Found: it has moved, so write the new address"),
        # A proxy that has passed it on and does not know either. An application that is down behind it answers so, too.
        (502, "doubtful", "a proxy answered 502: it has no answer of the service behind it"),
        (504, "doubtful", "a proxy answered 504: it has no answer of the service behind it"),
    ],
)
def test_only_success_says_that_it_was_taken(answer: int, state: str, why: str) -> None:
    with hook(answer) as server:
        assert sent(target(webhook={"url": server.url})) == Outcome(state, why)
        assert len(server.got) == 1


def test_a_webhook_that_does_not_answer_leaves_it_open_whether_it_arrived() -> None:
    with hook("stall") as server:
        outcome = sent(target(webhook={"url": server.url}, timeout="8s"))
    assert outcome.state == "doubtful" and outcome.why in ("no answer within 8 s", "timed out, and no answer")


def test_what_cannot_be_reached_was_not_delivered() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert sent(target(webhook={"url": f"http://127.0.0.1:{port}/x"})) == Outcome("failed", "Connection refused")
        mail = {"host": "127.0.0.1", "port": port, "tls": "none", "from": "a@b.c", "to": "d@e.f"}
        assert sent(target(smtp=mail)) == Outcome("failed", "Connection refused")
        # It is connected by the kernel, and says nothing: nothing of the notice has been sent.
        taken.listen()
        outcome = sent(target(smtp=mail, timeout="1s"))
    assert outcome.state == "failed" and outcome.why in ("not reached within 1 s", "timed out")
    assert sent(target(webhook={"url": "http://no-such-host.invalid/x"})).state == "failed"


def test_secrets_come_from_files_and_show_up_nowhere(tmp_path: Path) -> None:
    with hook(500) as server:
        url_file = private(tmp_path / "url", f"{server.url}?token={SECRET}")
        headers_file = private(tmp_path / "headers", f"Authorization: Bearer {SECRET}")
        to = target(webhook={"url_file": url_file, "headers_file": headers_file})
        sending = SendingProcess(to, notice())
        lines = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
        while (outcome := sending.outcome()) is None:
            time.sleep(0.02)
        assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in lines and SECRET not in outcome.why and SECRET not in repr(to)


def test_mail_has_one_subject_and_the_text() -> None:
    evil = 'x\nBcc: everybody@example.org\r\n\r\n.\r\nMAIL FROM:<x>\u2028"<b>'
    with mail_server() as server:
        mail = {"host": "127.0.0.1", "port": server.port, "tls": "none", "from": "lab@example.org"}
        to = target(smtp={**mail, "to": ["ada@example.org", "bob@example.org"]})
        content = notice(f"Fehler: grün {evil}", evil, "b\r\nFrom: root@example.org")
        assert sent(to, content) == Outcome("sent")
        [message] = server.got
        assert server.recipients == ["ada@example.org", "bob@example.org"]
    assert message["From"] == "lab@example.org" and message["To"] == "ada@example.org, bob@example.org"
    assert message["Subject"] == "dispatcher lab: 2 jobs failed" and message["Bcc"] is None
    assert [name for name in message if name == "From"] == ["From"]
    assert message["Message-ID"] == "<0123.7.t@example.org>" and message["Auto-Submitted"] == "auto-generated"
    text = message.get_content()
    assert "Fehler: grün x Bcc: everybody@example.org" in text.replace("\r\n", "\n")
    assert not any(line.startswith(("Bcc", "MAIL", "From", ".")) for line in text.splitlines())


def test_a_long_mail_is_lines_that_every_server_takes() -> None:
    with mail_server() as server:
        mail = {"host": "127.0.0.1", "port": server.port, "tls": "none", "from": "a@b.c", "to": "d@e.f"}
        causes = {
            str(number): Cause(
                topic="job_failed", text=f"exit {number}: {'grün ' * 30}", count=1, first_at=AT, last_at=AT
            )
            for number in range(40)
        }
        assert sent(target(smtp=mail), payload("lab", "t", 7, causes, 1, "0123")) == Outcome("sent")
        [raw], [message] = server.raw, server.got
    assert len(raw) > 5_000 and max(len(line) for line in raw.split(b"\r\n")) < 998
    assert b"\n" not in raw.replace(b"\r\n", b"") and b"\r" not in raw.replace(b"\r\n", b"")
    assert all(f"exit {number}: grün" in message.get_content() for number in range(40))


def test_a_mail_server_without_starttls_is_told_with_what_to_check() -> None:
    with mail_server() as server:
        mail = {"host": "127.0.0.1", "port": server.port, "from": "a@b.c", "to": "d@e.f"}
        outcome = sent(target(smtp=mail))
        assert outcome.state == "failed" and "STARTTLS" in outcome.why and "`tls`" in outcome.why
        assert not server.got


def test_what_a_mail_server_refuses_is_said_and_can_be_tried_again() -> None:
    with mail_server("451 come back later") as server:
        mail = {"host": "127.0.0.1", "port": server.port, "tls": "none", "from": "a@b.c", "to": ["d@e.f", "g@e.f"]}
        assert sent(target(smtp=mail)) == Outcome("failed", "the server answered 451 come back later")
        server.answer, server.refused = "250 OK", {"d@e.f"}
        assert sent(target(smtp=mail)) == Outcome("sent", "refused for d@e.f")
        server.refused = {"d@e.f", "g@e.f"}
        assert sent(target(smtp=mail)) == Outcome("failed", "d@e.f: the server answered 550 no such mailbox")


def test_a_mail_server_that_takes_the_message_and_falls_silent_leaves_it_open() -> None:
    with mail_server(delay_s=15) as server:
        mail = {"host": "127.0.0.1", "port": server.port, "tls": "none", "from": "a@b.c", "to": "d@e.f"}
        assert sent(target(smtp=mail, timeout="8s")).state == "doubtful"


def test_a_mail_server_with_a_password(tmp_path: Path) -> None:
    with mail_server(password=SECRET) as server:
        mail = {"host": "127.0.0.1", "port": server.port, "tls": "none", "from": "a@b.c", "to": "d@e.f", "user": "lab"}
        right = target(smtp={**mail, "password_file": private(tmp_path / "right", SECRET)})
        wrong = target(smtp={**mail, "password_file": private(tmp_path / "wrong", f"{SECRET}x")})
        assert sent(right) == Outcome("sent")
        outcome = sent(wrong)
        assert outcome.state == "failed" and "535" in outcome.why and SECRET not in outcome.why
        assert len(server.got) == 1


def test_a_command_gets_json_or_text_and_its_exit_status_counts(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    write = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())", str(kept)]
    assert sent(target(command=write)) == Outcome("sent")
    assert json.loads(kept.read_text()) == notice()
    assert sent(target(command={"argv": write, "input": "text"})) == Outcome("sent")
    assert kept.read_text() == notice()["text"]
    assert sent(target(command=["sh", "-c", "echo one >&2; echo two >&2; exit 3"])) == Outcome("failed", "exit 3: two")
    assert sent(target(command=["sh", "-c", "kill -9 $$"])) == Outcome("failed", "signal 9")
    assert sent(target(command=["no-such-command"])) == Outcome("failed", "there is no command no-such-command")
    for number, (text, mode) in enumerate([("#!/bin/sh\n", 0o644), ("#!/no/such/interpreter\n", 0o755)]):
        program = tmp_path / f"program{number}"
        program.write_text(text)
        program.chmod(mode)
        assert sent(target(command=[str(program)])) == Outcome("failed", f"{program} cannot be executed")


def test_what_a_command_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    for end, expected in (
        ("exit 0", Outcome("sent")),
        ("echo no luck >&2; exit 3", Outcome("failed", "exit 3: no luck")),
    ):
        assert sent(target(command=["sh", "-c", f"sleep 300 & echo $! > '{pid}'; {end}"], timeout="60s")) == expected
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"echo $$ >> '{pids}'; sleep 300 & echo $! >> '{pids}'; wait; touch '{tmp_path}/ended'"
    outcome = sent(target(command=["sh", "-c", script], timeout="8s"))
    assert outcome == Outcome("doubtful", "no answer within 8 s") and not (tmp_path / "ended").exists()
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                time.sleep(0.02)


def test_apprise_sends_to_what_it_knows(tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    with hook(200, 500, 502) as server:
        to = target(apprise={"url_file": private(tmp_path / "url", f"json://127.0.0.1:{server.port}/{SECRET}")})
        assert sent(to) == Outcome("sent")
        assert server.got[0]["title"] == notice()["subject"] and "exit 1" in server.got[0]["message"]
        assert sent(to) == Outcome("failed", "the service answered 500")
        assert sent(to) == Outcome("doubtful", "a proxy answered 502: it has no answer of the service behind it")
    assert sent(to) == Outcome("failed", "the service cannot be reached")
    odd = target(apprise={"url_file": private(tmp_path / "odd", f"no-such-service://{SECRET}")})
    assert sent(odd) == Outcome("failed", f"{tmp_path / 'odd'}: Apprise does not know such an address")


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"command": ["no-such-command"]}, "command: no-such-command: there is no such command on this host"),
        ({"webhook": {"url_file": "{missing}"}}, "webhook.url_file: {missing} cannot be read: No such file"),
        ({"webhook": {"url_file": "{open}"}}, "webhook.url_file: {open} can be read by others: `chmod 600 {open}`"),
        ({"webhook": {"url_file": "{text}"}}, "webhook.url_file: {text}: expected an address that begins with https"),
        ({"webhook": {"url": "https://a.b", "headers_file": "{text}"}}, "{text}: line 1 is no header such as"),
        ({"apprise": {"url_file": "{empty}"}}, "apprise.url_file: {empty} is empty"),
    ],
)
def test_what_cannot_work_is_found_before_somebody_is_to_be_told(
    keys: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    files = {name: str(tmp_path / name) for name in ("missing", "open", "text", "empty")}
    (tmp_path / "open").write_text(f"https://example.org/{SECRET}\n")
    (tmp_path / "open").chmod(0o640)
    private(tmp_path / "text", SECRET)
    private(tmp_path / "empty", "")
    text = json.dumps(keys)
    for name, path in files.items():
        text, fault = text.replace(f"{{{name}}}", path), fault.replace(f"{{{name}}}", path)
    found = list(faults_in(target(**json.loads(text))))
    assert len(found) == 1 and fault in found[0] and SECRET not in found[0]


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"events": ["job_faild"], "command": ["cat"]}, "did you mean 'job_failed'?"),
        ({"comand": ["cat"]}, "unknown key (did you mean 'command'?)"),
        ({"command": "cat x"}, "expected a list of arguments"),
        ({"command": ["cat"], "smtp": {"host": "h", "from": "a@b", "to": "c@d"}}, "not 2"),
        ({"command": ["cat"], "quiet": "22-7"}, "two times of day"),
        ({"command": ["cat"], "after": "soon"}, "expected a time such as"),
        ({"command": ["cat"], "per_hour": 0}, "from 1 to 100"),
        ({"smtp": {"host": "h", "from": "a@b\nBcc: x@y", "to": "c@d"}}, "expected an address such as"),
        ({"smtp": {"host": "h", "from": "a@b", "to": "c@d", "user": "u"}}, "belong together"),
        (
            {"smtp": {"host": "h", "port": 25, "from": "a@b", "to": "c@d", "user": "u", "password_file": "/x"}},
            "would cross the network unencrypted",
        ),
        ({"smtp": f"smtp://u:{SECRET}@h"}, "targets.t.smtp: expected keys such as host"),
        ({"webhook": {"url": f"https://u:{SECRET}@h"}}, "it contains a password"),
        ({"webhook": {"url": f"file:///{SECRET}"}}, "begins with https://"),
        ({"webhook": {"url": "https://h", "headers": {"Authorization": SECRET}}}, "headers_file"),
        ({"webhook": {"url_file": "tokens/x"}}, "expected an absolute path"),
    ],
)
def test_faults_of_the_settings_name_the_key_and_no_secret(keys: dict[str, Any], fault: str) -> None:
    with pytest.raises(PartsError) as raised:
        parse_notify({"targets": {"t": keys}})
    assert fault in str(raised.value) and SECRET not in str(raised.value)


def test_a_zone_that_this_host_does_not_know_is_refused() -> None:
    with pytest.raises(PartsError, match="knows no such zone"):
        parse_notify({"timezone": "Europe/Atlantis", "targets": {"t": {"command": ["cat"]}}})
