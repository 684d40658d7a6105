"""Requests that strangers' pages, other accounts and old cookies send are refused; what the page sends is not."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import psutil
import pytest

from dispatcher.web.guard import HEADERS

PATHS = ("/", "/static/main.js", "/api/overview", "/api/changes?since=x", "/api/jobs", "/api/pods", "/nowhere")
READING = ("/api/overview", "/api/changes?since=x", "/api/jobs/fft_greek_s1")
REQUEUE = "/api/changes/requeue"


def test_the_link_becomes_a_cookie_that_no_script_reads_and_the_token_is_gone(serve):
    web = serve()
    answer = web.send("GET", f"/login?token={web.token}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert re.match(rf"dispatcher_{web.port}_[0-9a-f]{{12}}=[\w-]{{43}}; ", cookie)
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert web.token not in cookie
    assert web.get("/api/overview").status == 200


def test_the_token_is_in_no_argument_and_in_no_log(serve):
    web = serve()
    web.log_in()
    web.send("GET", "/login?token=wrong")
    arguments = Path(f"/proc/{web.process.pid}/cmdline").read_text()
    told = web.end()
    assert web.token not in arguments + told
    assert told.count("\n") == 1 and "read-only" in told


def test_it_listens_on_the_loopback_interface_alone(serve):
    web = serve()
    listening = [c.laddr for c in psutil.Process(web.process.pid).net_connections() if c.status == "LISTEN"]
    assert [tuple(one) for one in listening] == [("127.0.0.1", web.port)]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "", "10.0.0.5"]
)
def test_a_rebound_name_is_refused_though_it_brings_the_cookie(serve, host):
    web = serve()
    web.log_in()
    for path in (*PATHS, f"/login?token={web.token}"):
        answer = web.get(path, Host=host.format(port=web.port))
        assert answer.status == 403, path
        assert "set-cookie" not in answer.headers


def test_a_tunnel_with_another_port_is_let_in(serve):
    web = serve("--allow-changes")
    for host in ("localhost:9000", "127.0.0.1:9000", "[::1]:9000", "localhost"):
        assert web.get("/api/overview", Host=host).status == 200
        answer = web.post("/api/changes/hold", {"jobs": ["lora_hindi_s0"]}, Host=host, Origin=f"http://{host}")
        assert answer.status == 200, answer.body


def test_a_host_that_is_there_twice_is_refused(serve):
    web = serve()
    request = f"GET /api/overview HTTP/1.1\r\nHost: {web.host}\r\nHost: evil.example\r\nCookie: {web.log_in()}\r\n"
    assert web.raw((request + "Connection: close\r\n\r\n").encode()).status == 400


@pytest.mark.parametrize("cookie", [None, "nonsense", "{name}=", "{name}=wrong", "{name}={token}"])
def test_without_a_session_nothing_is_told(serve, cookie):
    web = serve()
    name = web.log_in().partition("=")[0]
    headers = {} if cookie is None else {"Cookie": cookie.format(name=name, token=web.token)}
    for path in PATHS:
        answer = web.send("GET", path, headers)
        assert answer.status == 401, path
        assert b"fft_greek" not in answer.body
    assert web.send("GET", "/login?token=" + web.token[:-1]).status == 401
    assert web.send("GET", "/login").status == 401


def test_the_cookie_of_another_workspace_port_or_start_is_refused(serve, lab, tmp_path):
    web = serve()
    other_root = tmp_path / "other"
    shutil.copytree(lab.root, other_root)
    others = (serve(), serve(root=other_root))
    name = web.log_in().partition("=")[0]
    for other in others:
        theirs = other.log_in()
        assert theirs.partition("=")[0] != name
        for cookie in (theirs, f"{name}={theirs.partition('=')[2]}"):
            assert web.send("GET", "/api/overview", {"Cookie": cookie}).status == 401
    before, port = web.cookie, web.port
    web.end()
    again = serve(port=port)
    assert again.log_in().partition("=")[0] == name
    assert again.send("GET", "/api/overview", {"Cookie": before}).status == 401
    assert again.send("GET", f"/login?token={web.token}").status == 401


def test_cookies_of_other_servers_of_the_host_do_not_hide_this_one(serve):
    web = serve()
    cookie = web.log_in()
    name = cookie.partition("=")[0]
    odd = ("a=b", "username-localhost-8888={x", 'odd="', 'settings={"a": "b"}', "=", f"{name}=of-another-path")
    for one in odd:
        for line in (f"{one}; {cookie}", f"{cookie}; {one}", f"c=d; {one}; {cookie}; e"):
            assert web.send("GET", "/api/overview", {"Cookie": line}).status == 200, line


ORIGINS = (
    "http://evil.example",
    "https://{host}",
    "http://localhost:1",
    "null",
    "http://127.0.0.1:1",
    "http://{host}.evil",
)


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_foreign_origin_is_refused_whatever_the_method(serve, lab, origin):
    web = serve("--allow-changes")
    foreign = origin.format(host=web.host)
    for path in READING:
        assert web.get(path, Origin=foreign).status == 403
    before = lab.layout.journal(1).read_bytes()
    body = {"jobs": ["lora_hindi_s0"]}
    assert web.post("/api/changes/hold", body, Origin=foreign).status == 403
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"):
        headers = {"Cookie": web.cookie, "Origin": foreign, "X-Dispatcher-Request": "1"}
        assert web.send(method, "/api/changes/hold", headers).status == 403
    assert lab.layout.journal(1).read_bytes() == before


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_gets_nothing_though_the_browser_adds_the_cookie(serve, site):
    web = serve("--allow-changes")
    for path in READING:
        for mode in ({}, {"Sec-Fetch-Mode": "no-cors"}, {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}):
            assert web.get(path, **{"Sec-Fetch-Site": site, **mode}).status == 403
    assert web.post("/api/changes/hold", {"jobs": ["lora_hindi_s0"]}, **{"Sec-Fetch-Site": site}).status == 403
    framed = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    assert web.get("/", **framed).status == 403
    # A link to the page, in a mail, may be followed.
    followed = {**framed, "Sec-Fetch-Dest": "document"}
    assert web.get("/", **followed).status == 200


@pytest.mark.parametrize("missing", ["Origin", "X-Dispatcher-Request", "Cookie"])
def test_a_change_needs_all_that_the_page_sends(serve, lab, missing):
    web = serve("--allow-changes")
    before = lab.layout.journal(1).read_bytes()
    answer = web.post("/api/changes/hold", {"jobs": ["lora_hindi_s0"]}, without=(missing,))
    assert answer.status == (401 if missing == "Cookie" else 403)
    assert lab.layout.journal(1).read_bytes() == before


def test_no_other_method_than_post_changes_anything(serve, lab):
    web = serve("--allow-changes")
    web.log_in()
    before = lab.layout.journal(1).read_bytes()
    own = {"Cookie": web.cookie, "Origin": f"http://{web.host}", "X-Dispatcher-Request": "1"}
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
        answer = web.send(method, REQUEUE, own)
        assert answer.status == 405, method
        assert "access-control-allow-origin" not in answer.headers
    assert lab.layout.journal(1).read_bytes() == before


def test_it_is_read_only_unless_it_is_told_otherwise(serve, lab):
    web = serve()
    before = lab.snapshot()
    for name in ("requeue", "hold", "cancel"):
        answer = web.post(f"/api/changes/{name}", {"jobs": ["lora_hindi_s0"]})
        assert answer.status == 403 and "--allow-changes" in answer.error
    assert web.post("/api/changes/pause", {"scope": "fft"}).status == 403
    assert web.get("/api/overview").json["changes_allowed"] is False
    assert lab.snapshot() == before


def test_every_answer_has_the_headers_that_keep_it_apart(serve):
    web = serve()
    requests = [web.get(path) for path in (*PATHS, "/api/jobs?limit=x", "/api/jobs/none")]
    requests += [web.send("GET", "/"), web.send("GET", "/", {"Host": "evil.example"}), web.send("POST", "/api/jobs")]
    for answer in requests:
        for name, value in HEADERS:
            assert answer.headers[name.decode()] == value.decode()
        assert "server" not in answer.headers
        assert answer.headers["cache-control"] in ("no-store", "no-cache")


@pytest.mark.parametrize(
    "job", ["..", "%2e%2e", "..%2f..%2fdispatcher.yaml", "%2fetc%2fpasswd", "fft_greek_s1%00", "a'; echo", "%ff%fe"]
)
def test_only_jobs_have_files(serve, job):
    web = serve()
    for path in (
        f"/api/jobs/{job}",
        f"/api/jobs/{job}/log",
        f"/api/jobs/{job}/log/download",
        f"/api/jobs/{job}/metrics",
    ):
        answer = web.send("GET", path.replace(" ", "%20"), {"Cookie": web.cookie or web.log_in()})
        assert answer.status in (400, 404), path


def test_a_log_that_leads_elsewhere_is_not_shown(serve, lab, tmp_path):
    secret = tmp_path / "id_rsa"
    secret.write_text("PRIVATE")
    linked, piped, moved = "fft_greek_s9", "fft_greek_s11", "fft_greek_s13"
    (lab.attempt(linked) / "output.log").symlink_to(secret)
    (lab.attempt(linked) / "metrics.jsonl").symlink_to(secret)

    os.mkfifo(lab.attempt(piped) / "output.log")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "output.log").write_text("PRIVATE")
    directory = lab.attempt(moved)
    shutil.rmtree(directory)
    directory.symlink_to(elsewhere)
    web = serve()
    for job in (linked, piped, moved):
        for path in ("log", "log/download"):
            answer = web.get(f"/api/jobs/{job}/{path}")
            assert answer.status == 409, (job, path, answer.body)
            assert b"PRIVATE" not in answer.body
    assert web.get(f"/api/jobs/{linked}/metrics").status == 409
    assert b"PRIVATE" not in web.get("/api/overview").body
