"""Changes from the page are those of the commands, recorded under the user's name."""

from __future__ import annotations

import signal
import socket
import sys
import time

import pytest
from web_requests import Web

import dispatcher.web
from dispatcher.__main__ import main
from dispatcher.run_state import journal
from dispatcher.web.connection_limit import PATIENCE_S

JOB = "lora_hindi_s0"


@pytest.fixture
def web(serve) -> Web:
    return serve("--allow-changes")


def test_a_change_is_in_the_journal_with_the_users_name(web, lab):
    failed = "fft_greek_s9"
    answer = web.post("/api/changes/requeue", {"jobs": [failed]})
    assert answer.status == 200 and list(answer.json["changed"]) == [failed]
    last = list(journal.history(lab.layout, failed))[-1]
    assert last.set["state"] == "queued" and last.by.startswith("ada@")
    assert lab.state(failed) == "queued"
    # The next answer shows it.
    assert web.get(f"/api/jobs/{failed}").json["record"]["state"] == "queued"


@pytest.mark.parametrize(("name", "state"), [("hold", "held"), ("cancel", "abandoned")])
def test_jobs_are_held_and_given_up(web, lab, name, state):
    answer = web.post(f"/api/changes/{name}", {"jobs": [JOB]})
    assert answer.status == 200 and lab.state(JOB) == state


def test_methods_are_paused_and_go_on(web, lab):
    assert web.post("/api/changes/pause", {"scope": "fft", "why": "bad data"}).status == 200
    paused = [one for one in web.get("/api/overview").json["attention"] if one["kind"] == "paused"]
    assert any(one["scope"] == "fft" and "bad data (by ada@" in one["text"] for one in paused)
    assert web.post("/api/changes/unpause", {"scope": "fft"}).status == 200
    assert "fft" not in lab.workspace.snapshot().pauses


def test_the_settings_are_those_of_now(web, lab):
    assert web.post("/api/changes/pause", {"scope": "added"}).status == 400
    lab.layout.config_file.write_text("methods: {added: {}}\n")
    assert web.post("/api/changes/pause", {"scope": "added"}).status == 200


REFUSED = (
    ("requeue", {"jobs": ["nobody"]}, 400, "unknown job 'nobody'"),
    ("requeue", {"jobs": [JOB, "fft_*"]}, 400, "unknown job 'fft_*'"),
    ("requeue", {"jobs": []}, 400, "by their ids"),
    ("requeue", {"job": [JOB]}, 400, "job"),
    ("requeue", [JOB], 400, "Expected"),
    ("cancel", {"scope": "fft"}, 400, "by their ids"),
    ("pause", {"scope": "nothing"}, 400, "unknown method"),
    ("pause", {"scope": "lora"}, 400, "already paused"),
    ("unpause", {"scope": "fft"}, 400, "not paused"),
    ("delete", {"jobs": [JOB]}, 404, "requeue, hold, cancel"),
    ("hold", {"jobs": [JOB] * 200_000}, 413, "more than"),
)


def test_what_cannot_be_done_is_refused_as_a_whole(web, lab):
    before = lab.layout.journal(1).read_bytes()
    for name, body, status, word in REFUSED:
        answer = web.post(f"/api/changes/{name}", body)
        assert answer.status == status and word in answer.error, (name, answer.body)
        assert lab.layout.journal(1).read_bytes() == before


def ended_s(web):
    """How long it takes to end."""
    began_s = time.monotonic()
    web.process.send_signal(signal.SIGINT)
    assert web.process.wait(timeout=60) == 0
    return time.monotonic() - began_s


def test_ctrl_c_ends_it_at_once_also_while_a_browser_is_connected(serve):
    alone = serve()
    alone.get("/api/overview")
    alone_s = ended_s(alone)
    web = serve()
    web.get("/api/overview")
    with (
        socket.create_connection(("127.0.0.1", web.port)) as idle,
        socket.create_connection(("127.0.0.1", web.port)) as half,
    ):
        idle.sendall(f"GET / HTTP/1.1\r\nHost: {web.host}\r\n\r\n".encode())
        half.sendall(b"GET /api/over")
        time.sleep(0.3)
        # A connection that nothing ends is closed after PATIENCE_S.
        assert ended_s(web) < 3 * alone_s + PATIENCE_S / 2
    assert "Traceback" not in web.end()


def test_a_port_in_use_is_told_and_otherwise_the_next_one_is_taken(serve, lab):
    web = serve()
    outcome = lab.run("web", "--port", str(web.port))
    assert outcome.code == 2 and f"port {web.port}" in outcome.err and "--port" in outcome.err


def test_without_its_extra_it_says_what_to_install(lab, monkeypatch):
    # Imported again here, and afterwards as it was before.
    monkeypatch.setattr(dispatcher, "web", dispatcher.web)
    for name in [name for name in sys.modules if name.startswith("dispatcher.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr(sys, "argv", ["dispatcher", "--root", str(lab.root), "web"])
    with pytest.raises(SystemExit, match=r"no module uvicorn.*\[web\]"):
        main()
