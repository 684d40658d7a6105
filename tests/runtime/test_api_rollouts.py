"""Jobs that ask a model behind HTTP: against a server of this machine that fails, stalls, and counts."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fleet import wait_until
from model_server import Asked, Handler, Server, answer, completion, serving, troubled
from small_disks import small_disk_at
from written_metrics import read_metrics

from dispatcher import contract
from dispatcher.errors import ConfigError, RequestError, StorageError, SupersededError
from dispatcher.runtime.execution import local
from dispatcher.runtime.http_api.completion import row_of
from dispatcher.runtime.http_api.config import ApiConfig
from dispatcher.runtime.http_api.exchange import Client, HttpRequest, IncompleteExchangeError
from dispatcher.runtime.http_api.key import ApiKey
from dispatcher.runtime.http_api.pace import Pace
from dispatcher.runtime.http_api.responses import Answer, Responses
from dispatcher.runtime.jobs.api_prompts import ApiPrompts
from dispatcher.runtime.launching import make_job

pytestmark = pytest.mark.demo

FAST = {"backoff_s": 0.01, "backoff_max_s": 0.02, "timeout_s": 20.0}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def write_prompts(root: Path, texts: list[str]) -> None:
    (root / "data").mkdir(exist_ok=True)
    lines = [json.dumps({"id": number, "prompt": text}) for number, text in enumerate(texts)]
    (root / "data" / "prompts.jsonl").write_text("\n".join(lines) + "\n")


def job_on(root: Path, server: Server, *, samples: int = 1, **api: Any) -> ApiPrompts:
    config = {"prompts": {"file": "prompts.jsonl", "samples": samples}, "api": {"url": server.url, **FAST, **api}}
    job = make_job(ApiPrompts, local(root, "answers"), config)
    assert isinstance(job, ApiPrompts)
    return job


def answers(job: ApiPrompts) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.spec.result_path("answers.jsonl").read_text().splitlines()]


def counts(answers: int, **others: int) -> dict[str, int]:
    """The job's row of results."""
    row = {"answers": answers, "cut": 0, "tool_calls": 0, "further_choices": 0, "failed": 0, "empty": 0, "refused": 0}
    return {**row, **others}


def saved(job: ApiPrompts) -> list[Path]:
    return sorted(job.spec.result_path("responses").iterdir())


def test_answers_stand_in_order_beside_their_prompts(tmp_path: Path, server: Server) -> None:
    texts = [f"text {number} é" for number in range(40)]
    write_prompts(tmp_path, texts)
    job = job_on(tmp_path, server, model="m", parameters={"temperature": 0.5}, concurrency=8)
    assert job() == counts(40)
    assert [line["text"] for line in answers(job)] == [text[::-1] for text in texts]
    assert [line["id"] for line in answers(job)] == list(range(40))
    assert {json.dumps([one.body["model"], one.body["temperature"]]) for one in server.asked} == {'["m", 0.5]'}
    assert len({one.headers["idempotency-key"] for one in server.asked}) == 40
    last = read_metrics(job.spec.result_path("metrics.jsonl"))[-1]
    assert last["step"] == 40 and last["failed"] == 0 and last["response_s"] > 0
    # Everything is there: not one request is sent again.
    assert job_on(tmp_path, server, model="m", parameters={"temperature": 0.5})() == counts(40)
    assert len(server.asked) == 40


def test_what_has_changed_is_asked_and_nothing_else(tmp_path: Path, server: Server) -> None:
    write_prompts(tmp_path, ["a", "b", "c"])
    job_on(tmp_path, server, samples=2)()
    assert server.times() == {"a": 2, "b": 2, "c": 2}
    # One is inserted, one edited, and the server has moved.
    write_prompts(tmp_path, ["new", "a", "edited", "c"])
    with serving() as moved:
        job = job_on(tmp_path, moved, samples=2)
        job()
        assert moved.times() == {"new": 2, "edited": 2}
        assert [line["text"] for line in answers(job)][2:] == ["a", "a", "detide", "detide", "c", "c"]
        # A line that a person removes is asked again; one that was cut off as by a kill, too.
        first, second = saved(job)
        lines = first.read_bytes().splitlines(keepends=True)
        # The last two belong to requests that the job still has.
        lines.sort(key=lambda line: json.loads(line)["index"] not in (2, 3))
        first.write_bytes(b"".join(lines[:-2]) + lines[-1][:-5])
        # One that an editor has left without the end of its line is not.
        second.write_bytes(second.read_bytes().rstrip(b"\n"))
        job()
        assert sum(moved.times().values()) == 6
        assert [path.name for path in saved(job)] == ["1.jsonl", "2.jsonl", "3.jsonl"]
        assert len(second.read_bytes().splitlines()) == 4


def test_failures_that_pass_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: dict[str, int] = {}

    def behave(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any] | None:
        tried[asked.text] = tried.get(asked.text, 0) + 1
        if tried[asked.text] > 1:
            return answer(handler, asked)
        failures = {
            "status": lambda: (503, {}, {}),
            "limit": lambda: (429, {"Retry-After": "1"}, {}),
            "reset": handler.reset,
            "half": handler.break_off,
            "stall": handler.stall,
            "trickle": handler.trickle,
            "html": lambda: (200, {}, b"<html>"),
            "fault": lambda: (200, {}, {"error": {"message": "no provider"}}),
            "nothing": lambda: (200, {}, b"null"),
            "no choice": lambda: (200, {}, {"choices": []}),
            "nested": lambda: (200, {}, b"[" * 100_000 + b"]" * 100_000),
            "long": lambda: (200, {"Content-Length": str(2**40)}, b"{}"),
            "endless": handler.flood,
        }
        return failures[asked.text]()  # type: ignore[no-any-return]

    texts = ["status", "limit", "reset", "half", "stall", "trickle", "html", "fault"]
    texts += ["nothing", "no choice", "nested", "long", "endless"]
    monkeypatch.setattr("dispatcher.runtime.http_api.exchange.MOST_BYTES", 2**22)
    write_prompts(tmp_path, texts)
    with serving(behave) as server:
        job = job_on(tmp_path, server, timeout_s=1.0, concurrency=len(texts))
        assert job() == counts(len(texts))
        assert set(server.times().values()) == {2}
        keys = {one.text: set() for one in server.asked}
        for one in server.asked:
            keys[one.text].add(one.headers["idempotency-key"])
        assert [len(each) for each in keys.values()] == [1] * len(texts)
        # The pause that the API asks for holds for all: in the second after it nothing is sent.
        limit_s = next(one.at_s for one in server.asked if one.text == "limit")
        after = [one.at_s - limit_s for one in server.asked if one.at_s > limit_s + 0.5]
        assert min(after) > 0.9
    assert read_metrics(job.spec.result_path("metrics.jsonl"))[-1]["retries"] == len(texts)


def test_an_api_that_does_not_answer_ends_the_job_and_is_asked_again_by_the_next(tmp_path: Path) -> None:
    def down(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        return (500, {}, {"error": "down"}) if asked.text == "b" else answer(handler, asked)

    write_prompts(tmp_path, ["a", "b"])
    with serving(down) as server:
        with pytest.raises(RequestError, match=r"request 1 to .* failed: HTTP 500: .*down.* \(tried 3 times\)"):
            job_on(tmp_path, server, retries=2, concurrency=1)()
        # With `record` it becomes a row, but is no answer: the next run asks again.
        job = job_on(tmp_path, server, retries=2, on_error="record")
        assert job() == counts(1, failed=1)
        assert answers(job)[1]["error"].startswith("HTTP 500")
        server.behaviour = answer
        assert job() == counts(2)
        assert server.times() == {"a": 1, "b": 7}


def test_refusals_stop_the_job_or_are_rows_for_good(tmp_path: Path) -> None:
    def refuse(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        return (400, {}, {"error": "too long"}) if asked.text == "long" else answer(handler, asked)

    write_prompts(tmp_path, ["a", "long", "b"])
    with serving(refuse) as server:
        with pytest.raises(RequestError, match=r"request 1 .*HTTP 400: .*too long.*\n.*'long'.*\n.*on_error: record"):
            job_on(tmp_path, server, concurrency=1)()
        assert server.times() == {"a": 1, "long": 1}
        for _ in range(2):
            job = job_on(tmp_path, server, on_error="record")
            assert job() == counts(2, failed=1)
        assert server.times() == {"a": 1, "long": 2, "b": 1}
        assert answers(job)[1] == {
            **{"id": 1, "prompt": "long"},
            **{"error": 'HTTP 400: {"error": "too long"}', "outcome": "failed"},
        }


def chosen(content: Any, reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}


CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
CALL = {"name": "f", "arguments": "{}"}
THINKS = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("choice", "outcome", "text", "more"),
    [
        (chosen("fine"), "answer", "fine", {}),
        (chosen("fine", None), "answer", "fine", {}),
        ({"text": "a completion", "finish_reason": "stop"}, "answer", "a completion", {}),
        (chosen([{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]), "answer", "two parts", {}),
        (chosen([THINKS, {"type": "text", "text": "part"}]), "answer", "part", {}),
        (chosen("1, 2, 3", "length"), "cut", "1, 2, 3", {}),
        (chosen("1, 2, 3", "abort"), "cut", "1, 2, 3", {}),
        (chosen(None, "length", reasoning_content="hm"), "empty", None, {}),
        (chosen(None), "empty", None, {}),
        (chosen(""), "empty", "", {}),
        (chosen(" \n"), "empty", " \n", {}),
        (chosen([]), "empty", None, {}),
        (chosen([THINKS]), "empty", None, {}),
        ({"message": {"role": "assistant"}, "finish_reason": "stop"}, "empty", None, {}),
        (chosen(None, "tool_calls", tool_calls=CALLS), "tool_calls", None, {"tool_calls": CALLS}),
        (chosen("I ask", "tool_calls", tool_calls=CALLS), "tool_calls", "I ask", {"tool_calls": CALLS}),
        (chosen(None, "function_call", function_call=CALL), "tool_calls", None, {"tool_calls": [CALL]}),
        (chosen(None, refusal="I must not"), "refused", None, {"refusal": "I must not"}),
        (chosen([{"type": "refusal", "refusal": "No."}]), "refused", None, {"refusal": "No."}),
        (chosen("To begin", "content_filter"), "refused", "To begin", {}),
    ],
)
def test_what_a_choice_says(choice: Any, outcome: str, text: str | None, more: Any) -> None:
    reason = choice["finish_reason"]
    assert row_of({"choices": [choice]}) == {"text": text, "finish_reason": reason, "outcome": outcome, **more}
    both = row_of({"choices": [chosen("fine"), choice]})
    assert both["outcome"] == "answer"
    assert [further["outcome"] for further in both["further_choices"]] == [outcome]


def test_what_is_no_answer_is_counted_and_not_asked_for_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = {
        "fine": [chosen("yes")],
        "null": [chosen(None, "length", reasoning_content="hm")],
        "cut": [chosen("1, 2", "length")],
        "tool": [chosen(None, "tool_calls", tool_calls=CALLS)],
        "refused": [chosen(None, refusal="no")],
        "three": [chosen("a"), chosen("b"), chosen("")],
    }

    def says(handler: Any, asked: Any) -> Any:
        if asked.text == "long":
            return 400, {}, {"error": "too long"}
        return 200, {}, {"choices": said[asked.text]}

    write_prompts(tmp_path, [*said, "long"])
    # What a line of the file has is no outcome, nor further choices.
    path = tmp_path / "data" / "prompts.jsonl"
    path.write_text(path.read_text().replace('"id": 0', '"id": 0, "outcome": "cut", "choices": ["a", "b"]'))
    with serving(says) as server:
        for _ in range(2):
            job = job_on(tmp_path, server, on_error="record")
            assert job() == counts(2, cut=1, tool_calls=1, further_choices=2, failed=3, empty=1, refused=1)
        assert set(server.times().values()) == {1}
    rows = answers(job)
    assert [row["outcome"] for row in rows] == ["answer", "empty", "cut", "tool_calls", "refused", "answer", "failed"]
    assert rows[0] == {**{"id": 0, "choices": ["a", "b"], "prompt": "fine"}, **row_of({"choices": said["fine"]})}
    assert [choice["text"] for choice in rows[5]["further_choices"]] == ["b", ""]
    assert "answers: some responses are no complete answers: 1 cut, 1 tool_calls, 1 refused, 1 empty" in caplog.text


def test_the_key_is_sent_and_shows_up_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = "sk-not-to-be-seen-0123456789"

    def echo(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        if asked.text == "wrong":
            return 401, {}, {"error": f"{asked.headers['authorization']} is no key"}
        return 200, {}, completion(asked.headers["authorization"])

    write_prompts(tmp_path, ["a", "wrong"])
    (tmp_path / "key").write_text(f"{secret}\n")
    caplog.set_level("DEBUG")
    with serving(echo) as server:
        with pytest.raises(ConfigError, match=r"api\.key_file: .* can be read by others: `chmod 600"):
            job_on(tmp_path, server, key_file=str(tmp_path / "key"))()
        (tmp_path / "key").chmod(0o600)
        # Also where failures are recorded: the next request would get the same.
        with pytest.raises(RequestError, match=r"HTTP 401: .*<the API key> is no key") as caught:
            job_on(tmp_path, server, key_file=str(tmp_path / "key"), on_error="record", concurrency=1)()
        assert server.asked[0].headers["authorization"] == f"Bearer {secret}"
    (tmp_path / "key").unlink()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"Bearer <the API key>" in content for content in written)
    assert not any(secret.encode() in content for content in written)
    assert secret not in caplog.text + str(caught.value)


def test_a_key_is_found_in_json_and_in_addresses() -> None:
    key = ApiKey('sk-with/slash+"0123')
    quoted = json.dumps(key.value).replace("/", "\\/")
    for text in (key.value, json.dumps(key.value), quoted, "https://host/?key=sk-with%2Fslash%2B%220123"):
        assert "slash" not in key.hidden(text) and b"slash" not in key.hidden(text.encode())


def test_nothing_of_a_key_is_left_where_an_error_is_cut_off_and_a_word_is_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verbose(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        quoted = "x" * 265 + asked.headers["authorization"]
        return (400, {}, {"error": quoted}) if asked.text == "status" else (200, {}, {"error": quoted})

    write_prompts(tmp_path, ["status", "fault"])
    monkeypatch.setenv("MODEL_KEY", "sk-not-to-be-seen-0123456789-and-so-on")
    with serving(verbose) as server:
        job = job_on(tmp_path, server, key_env="MODEL_KEY", on_error="record", retries=0)
        assert job() == counts(0, failed=2)
        assert all("Bearer <the" in line["error"] for line in answers(job))
        monkeypatch.setenv("MODEL_KEY", "EMPTY")
        server.behaviour = answer
        write_prompts(tmp_path, ["YTPME"])
        job = job_on(tmp_path, server, key_env="MODEL_KEY")
        job()
        assert answers(job)[0]["text"] == "EMPTY"


def test_answers_that_are_json_for_python_alone_are_kept(tmp_path: Path) -> None:
    def odd(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        content = {**completion("\ud800 half a pair"), "logprob": float("nan")}
        return 200, {}, json.dumps(content).encode()

    write_prompts(tmp_path, ["a"])
    with serving(odd) as server:
        for _ in range(2):
            job = job_on(tmp_path, server)
            assert job() == counts(1)
        assert len(server.asked) == 1
    assert answers(job)[0]["text"] == "\ud800 half a pair"


def test_answers_stand_beside_the_prompts_that_were_asked(tmp_path: Path) -> None:
    def edits(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        write_prompts(tmp_path, ["b", "a"])
        return answer(handler, asked)

    write_prompts(tmp_path, ["first", "second"])
    with serving(edits) as server:
        job = job_on(tmp_path, server)
        job()
    assert [(line["prompt"], line["text"]) for line in answers(job)] == [("first", "tsrif"), ("second", "dnoces")]


def test_a_thread_that_comes_back_after_the_end_writes_and_sends_nothing(tmp_path: Path, server: Server) -> None:
    responses = Responses(tmp_path / "responses")
    responses.add(0, "a", Answer("one"))
    responses.close()
    # Of two lines for one request the first counts.
    (tmp_path / "responses" / "2.jsonl").write_text('{"index": 0, "request": "a", "response": "two"}\n')
    with Responses(tmp_path / "responses") as both:
        assert both.get("a") == Answer("one")
    # The descriptor of this file has the number that the file of responses had.
    with (tmp_path / "other").open("w"), pytest.raises(StorageError, match="after the job had ended"):
        responses.add(1, "b", Answer("two"))
    assert (tmp_path / "other").read_text() == ""
    client = Client(ApiConfig(url=server.url))
    request = HttpRequest(f"{server.url}/chat/completions", {"messages": [{"content": "a"}]})

    async def late() -> None:
        async with client:
            client.abort()
            await client.post(request, {})

    with pytest.raises(IncompleteExchangeError, match="the job has ended"):
        asyncio.run(late())
    assert not server.asked


def test_all_exchanges_are_broken_off_also_beside_one_that_is_overdue(tmp_path: Path) -> None:
    async def broken_off(url: str) -> list[str]:
        client = Client(ApiConfig(url=url, timeout_s=60.0))
        request = HttpRequest(f"{url}/chat/completions", {"messages": [{"content": "a"}]})
        async with client:
            tasks = [asyncio.create_task(client.post(request, {})) for _ in range(4)]
            while len(client._exchanges) < len(tasks):
                await asyncio.sleep(0.01)
            overdue = next(iter(client._exchanges))
            overdue.reschedule(asyncio.get_running_loop().time())
            # The turn of the loop in which its time is over, before its task hears of it.
            while not overdue.expired():
                await asyncio.sleep(0)
            client.abort()
            return [str(error) for error in await asyncio.gather(*tasks, return_exceptions=True)]

    with serving(lambda handler, asked: handler.stall()) as server:
        assert asyncio.run(asyncio.wait_for(broken_off(server.url), 30)) == ["the job has ended"] * 4


def test_a_configuration_is_refused_before_anything_is_sent(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts(tmp_path, ["a"])
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    for api, message in (
        ({"url": "host/v1"}, "expected an address such as https://host/v1"),
        ({"url": "https://ada:pw@host/v1"}, "a user or a password"),
        ({"key_env": "sk-abc"}, r"expected the name of an environment variable, such as OPENAI_API_KEY, not the key$"),
        ({"key_env": "NO_SUCH_KEY"}, r"api\.key_env = NO_SUCH_KEY: this variable is not set"),
        ({"headers": {"Authorization": "x"}}, "no place for a secret"),
        ({"headers": {"Content-Length": "3"}}, "Content-Length: is computed"),
        ({"idempotency_header": "a key"}, "api.idempotency_header = 'a key': expected a name"),
        ({"headers": {"x-team": "a\r\nb"}}, r"api\.headers: 'x-team': expected a name and a value of"),
        ({"concurrency": 0, "retries": -1, "timeout_s": 0}, r"(?s)concurrency = 0.*retries = -1.*timeout_s = 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            job_on(tmp_path, server, **api)()
    (tmp_path / "data" / "prompts.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(ConfigError, match=r"prompts\.jsonl, line 2: expected"):
        job_on(tmp_path, server)()
    assert not server.asked


def test_a_pause_that_the_api_asks_for_holds_for_all_requests() -> None:
    pace = Pace(None, asyncio.Event())
    began_s = time.monotonic()
    pace.pause(0.3)
    assert asyncio.run(pace.wait())
    assert time.monotonic() - began_s >= 0.3


def test_a_redirect_ends_the_job_and_is_not_followed(tmp_path: Path) -> None:
    def moved(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        return 307, {"Location": "http://elsewhere.invalid/v1"}, {}

    write_prompts(tmp_path, ["a", "b"])
    with serving(moved) as server:
        with pytest.raises(RequestError, match=r"HTTP 307: the API has moved to http://elsewhere\.invalid/v1: correct"):
            job_on(tmp_path, server, on_error="record", concurrency=1)()
        assert len(server.asked) == 1


def test_two_jobs_do_not_share_an_answer_of_the_api(tmp_path: Path, server: Server) -> None:
    write_prompts(tmp_path, ["a"])
    config = {"prompts": {"file": "prompts.jsonl"}, "api": {"url": server.url, **FAST}}
    for name in ("one", "other"):
        make_job(ApiPrompts, local(tmp_path, name), config)()
    assert len({one.headers["idempotency-key"] for one in server.asked}) == 2


def test_requests_are_spaced_by_the_rate(tmp_path: Path, server: Server) -> None:
    write_prompts(tmp_path, [str(number) for number in range(6)])
    job_on(tmp_path, server, requests_per_minute=600)()
    times_s = sorted(one.at_s for one in server.asked)
    assert times_s[-1] - times_s[0] >= 0.45


def test_requests_go_through_the_proxy_of_the_environment(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts(tmp_path, ["a"])
    monkeypatch.setenv("http_proxy", server.url.replace("http://", "http://ada:p%40w@").removesuffix("/v1"))
    monkeypatch.setenv("no_proxy", "other.invalid")
    assert job_on(tmp_path, server, url="http://model.invalid/v1")() == counts(1)
    (asked,) = server.asked
    assert asked.path == "http://model.invalid/v1/chat/completions"
    assert base64.b64decode(asked.headers["proxy-authorization"].removeprefix("Basic ")) == b"ada:p@w"


def test_a_proxy_that_cannot_be_used_is_refused_before_anything_is_sent(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts(tmp_path, ["a"])
    monkeypatch.setenv("https_proxy", "gopher://proxy.invalid")
    with pytest.raises(ConfigError, match=r"proxy variables ask for: .*gopher"):
        job_on(tmp_path, server)()
    assert not server.asked


def test_a_certificate_that_is_not_trusted_ends_the_job(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=model"
    words += f" -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    write_prompts(tmp_path, ["a"])
    url = server.url.replace("http://127.0.0.1", "https://localhost")
    with pytest.raises(RequestError, match=r"certificate is not trusted: .*SSL_CERT_FILE"):
        job_on(tmp_path, server, url=url)()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert job_on(tmp_path, server, url=url)() == counts(1)


class Picky(ApiPrompts):
    """Its `parse` has a mistake."""

    def parse(self, response: Any) -> Any:
        return {"text": response["choices"][1]}


def test_a_mistake_in_parse_costs_one_request(tmp_path: Path, server: Server) -> None:
    write_prompts(tmp_path, [str(number) for number in range(30)])
    config = {"prompts": {"file": "prompts.jsonl"}, "api": {"url": server.url, **FAST, "concurrency": 1}}
    message = r'(?s)request 0 is saved, but Picky\.parse fails on it: IndexError.*"index": 0 from .*/1\.jsonl'
    with pytest.raises(RequestError, match=message):
        make_job(Picky, local(tmp_path, "answers"), config)()
    assert len(server.asked) == 1
    job_on(tmp_path, server)()
    assert set(server.times().values()) == {1}


class Strict(ApiPrompts):
    """Its `fault` has a mistake."""

    def fault(self, response: Any) -> str | None:
        return str(response["usage"]["no_such_key"])


def test_a_mistake_in_fault_loses_no_answer(tmp_path: Path, server: Server) -> None:
    write_prompts(tmp_path, [str(number) for number in range(6)])
    config = {"prompts": {"file": "prompts.jsonl"}, "api": {"url": server.url, **FAST, "concurrency": 3}}
    with pytest.raises(RequestError, match=r"its response is saved, but `fault` fails on it: KeyError: 'no_such_key'"):
        make_job(Strict, local(tmp_path, "answers"), config)()
    assert 1 <= len(server.asked) <= 3
    job_on(tmp_path, server)()
    assert set(server.times().values()) == {1}


def test_a_full_disk_ends_the_job_and_leaves_complete_lines(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    write_prompts(tmp_path, [str(number) * 8000 for number in range(9)])
    job = job_on(tmp_path, server, concurrency=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The size of files is limited in place of the disk's.
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16 + 2000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"1\.jsonl: a response cannot be saved"):
            job()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    kept = saved(job)[0].read_bytes()
    assert kept.endswith(b"}\n") and 1 <= len(kept.splitlines()) <= 8
    job()
    # Only the one whose answer could not be saved was sent twice.
    assert sorted(server.times().values()) == [1] * 8 + [2]


def test_on_a_disk_that_is_full_nothing_is_sent(tmp_path: Path, server: Server) -> None:
    write_prompts(tmp_path, ["a"])
    job = job_on(tmp_path, server)
    place, full = job.spec.result_path("responses"), r"a file for responses cannot be created: .*the disk is full"
    place.parent.mkdir(parents=True)
    with small_disk_at(place, "size=16k"), pytest.raises(StorageError, match=full):
        job()
    assert not server.asked


def test_the_file_for_responses_is_there_before_anything_is_sent(tmp_path: Path) -> None:
    seen: list[list[Path]] = []

    def looks(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        seen.append(saved(job))
        return answer(handler, asked)

    write_prompts(tmp_path, ["a"])
    with serving(looks) as server:
        job = job_on(tmp_path, server, url=f"{server.url}?api-version=1")
        job()
        assert server.asked[0].path == "/v1/chat/completions?api-version=1"
    assert seen == [saved(job)] != [[]]


def test_a_response_that_is_not_synced_is_no_answer(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def fails(descriptor: int) -> None:
        if server.asked and os.readlink(f"/proc/self/fd/{descriptor}").endswith("1.jsonl"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    write_prompts(tmp_path, ["a"])
    job = job_on(tmp_path, server)
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError, match=r"1\.jsonl: a response cannot be saved.*Input/output error"):
        job()
    assert not job.spec.result_path("answers.jsonl").exists()


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the attempt that this process is."""
    directory = tmp_path / "attempt"
    directory.mkdir()
    for name, value in (("JOB_ID", "answers"), ("ATTEMPT", "1"), ("ATTEMPT_DIR", str(directory))):
        monkeypatch.setenv(getattr(contract, name), value)
    return directory


def test_a_superseded_attempt_writes_no_results(tmp_path: Path, attempt: Path) -> None:
    def late(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        (attempt / contract.SUPERSEDED_FILE).write_text("")
        return answer(handler, asked)

    write_prompts(tmp_path, ["a"])
    with serving(late) as server:
        job = job_on(tmp_path, server)
        with pytest.raises(SupersededError):
            job()
    assert saved(job) and not job.spec.result_path("answers.jsonl").exists()


def test_as_many_files_may_be_open_as_there_are_connections(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    write_prompts(tmp_path, ["a"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        job_on(tmp_path, server, concurrency=100)()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    write_prompts(tmp_path, ["b"])
    with pytest.raises(ConfigError, match=r"api\.concurrency = 100: this process may open 256 files .* at most 56"):
        job_on(tmp_path, server, concurrency=100)()
    assert len(server.asked) == 1


def test_a_superseded_attempt_sends_no_more(tmp_path: Path, server: Server, attempt: Path) -> None:
    write_prompts(tmp_path, [str(number) for number in range(500)])
    job = job_on(tmp_path, server, requests_per_minute=1200)
    threading.Timer(0.3, lambda: (attempt / contract.SUPERSEDED_FILE).write_text("")).start()
    with pytest.raises(SupersededError, match="no more requests are sent: attempt 1 of answers was superseded"):
        job()
    assert 1 <= len(server.asked) < 100
    assert json.loads((attempt / contract.PROGRESS_FILE).read_text())["of"] == 500


# Forked from one process that has imported everything, as tests/runtime/kill_and_resume.py does.
RUN = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from dispatcher.runtime import launching
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs.api_prompts import ApiPrompts
import json
root, config = sys.argv[1], json.loads(sys.argv[2])
assert len(os.listdir("/proc/self/task")) == 1, "threads were started before the fork"
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            launching.make_job(ApiPrompts, local(root, "answers"), config)()
            os._exit(0)
        except SystemExit as left:
            os._exit(left.code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Runs:
    """Runs of the job in processes of their own, one after the other."""

    def __init__(self, root: Path, server: Server, **api: Any) -> None:
        config = {"prompts": {"file": "prompts.jsonl"}, "api": {"url": server.url, **FAST, **api}}
        words = [sys.executable, "-c", RUN, str(root), json.dumps(config)]
        self._parent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self) -> int:
        assert self._parent.stdin is not None
        self._parent.stdin.write("\n")
        self._parent.stdin.flush()
        return self._read()

    def end(self) -> int:
        """Wait for the run that began last; its exit status."""
        return self._read()

    def close(self) -> None:
        self._parent.communicate(timeout=60)

    def _read(self) -> int:
        assert self._parent.stdout is not None
        return int(self._parent.stdout.readline())


def indices_saved(root: Path) -> set[int]:
    """The indices of the complete lines on the disk, read as a person would."""
    found: set[int] = set()
    for path in (root / "results" / "default" / "default" / "answers" / "responses").glob("*.jsonl"):
        found |= {json.loads(line)["index"] for line in path.read_bytes().split(b"\n")[:-1]}
    return found


@pytest.mark.parametrize(("kills", "concurrency"), [(12, 8), (6, 1)])
def test_killed_anywhere_no_request_that_was_answered_is_sent_again(
    tmp_path: Path, kills: int, concurrency: int
) -> None:
    budget = 30
    texts = [f"prompt {number}" for number in range(kills * budget + 40)]
    write_prompts(tmp_path, texts)
    chance = random.Random(7)
    trouble = troubled(seed=3, share=0.1)
    # How many requests the server still takes care of: however late a kill comes, something is left to be asked.
    left = threading.Semaphore(0)
    answered: set[str] = set()

    def behave(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any] | None:
        return trouble(handler, asked) if left.acquire(blocking=False) else handler.stall()

    with serving(behave) as server:
        runs = Runs(tmp_path, server, timeout_s=1.0, retries=100, concurrency=concurrency)
        try:
            for _ in range(kills):
                left = threading.Semaphore(budget)
                wanted = len(server.asked) + chance.randint(1, budget - 5)
                before = len(server.asked)
                child = runs.begin()
                wait_until(lambda wanted=wanted: len(server.asked) >= wanted, "requests", 60)
                time.sleep(chance.uniform(0, 0.02))
                os.kill(child, signal.SIGKILL)
                assert runs.end() == -signal.SIGKILL
                assert not answered & {one.text for one in server.asked[before:]}
                # Answered, as the client has it: its line was complete when it was killed. And as the server has it:
                # all but what was in flight.
                answered = {texts[index] for index in indices_saved(tmp_path)}
                sent = {one.text for one in server.asked if one.answered}
                assert len(sent - answered) <= concurrency
                if concurrency == 1:
                    # Another request came over the same connection, so the line of the answer before it was saved.
                    assert {one.text for one in server.asked if one.acknowledged} <= answered
            assert 0 < len(answered) < len(texts)
            left = threading.Semaphore(1_000_000)
            before = len(server.asked)
            runs.begin()
            assert runs.end() == 0
            assert not answered & {one.text for one in server.asked[before:]}
        finally:
            runs.close()
        # Of the answers that the server had sent, only those in flight at a kill were sent for again.
        twice = sum(one.answered for one in server.asked) - len(texts)
        assert 0 <= twice <= kills * concurrency
    lines = (tmp_path / "results/default/default/answers/answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == [text[::-1] for text in texts]


def test_a_preempted_job_waits_for_what_is_in_flight(tmp_path: Path) -> None:
    hold = threading.Event()

    def held(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        hold.wait(60)
        # One fails, which is no reason to give it up: there is a next attempt.
        return (503, {}, {}) if asked.text == "0" and server.times()["0"] == 1 else answer(handler, asked)

    write_prompts(tmp_path, [str(number) for number in range(20)])
    with serving(held) as server:
        runs = Runs(tmp_path, server, concurrency=4, retries=0)
        try:
            child = runs.begin()
            wait_until(lambda: len(server.asked) == 4, "four requests in flight", 60)
            os.kill(child, signal.SIGTERM)
            time.sleep(0.2)
            hold.set()
            assert runs.end() == contract.EXIT_PREEMPTED
            assert (len(indices_saved(tmp_path)), len(server.asked)) == (3, 4)
            runs.begin()
            assert runs.end() == 0
            assert server.times() == {str(number): 2 if number == 0 else 1 for number in range(20)}
        finally:
            hold.set()
            runs.close()
