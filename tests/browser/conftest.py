"""A real Chromium (Debian's package), and the real server of `dispatcher web` for it.

Chromium lives as long as the tests of a file: Playwright keeps a loop of asyncio running, which the tests of other
files must not meet.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from beds.fixtures import skip_without
from chromium_here import launched
from fleet import Fleet, fleet_at
from web_servers import Served, serving

from dispatcher.api import Workspace
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.pauses import Paused
from dispatcher.run_state.states import State
from dispatcher.web.states import state_files

MADE = state_files()
STATIC = Path(__file__).parents[2] / "dispatcher" / "web" / "static"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("browser")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    skip_without("browser")
    pytest.importorskip("playwright", reason="Playwright is not installed: scripts/install browser")
    with launched() as browser:
        yield browser


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page in a session of its own. What the browser complains of fails the test at its end."""
    complaints: list[str] = []
    with contextlib.ExitStack() as contexts:

        def open_(address: str = "", **options: Any) -> Any:
            context = chromium.new_context(viewport={"width": 1280, "height": 900}, **options)
            contexts.callback(context.close)
            page = context.new_page()
            page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
            page.on("console", lambda message: _note(complaints, message))
            if address:
                page.goto(address)
            return page

        yield open_
    assert complaints == []


def _note(complaints: list[str], message: Any) -> None:
    # That a server is gone, or says no, is what some tests are about; everything else is a fault, as is anything that
    # the policy has refused.
    if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
        complaints.append(f"{message.type}: {message.text}")


@pytest.fixture
def bare_page(open_page: Callable[..., Any]) -> Any:
    """A page with the modules and styles of the page and no server, under its policy."""
    page = open_page()
    page.route("http://page.test/**", _serve_file)
    page.goto("http://page.test/empty")
    return page


def _serve_file(route: Any) -> None:
    name = route.request.url.removeprefix("http://page.test/").removeprefix("static/")
    path = STATIC / name
    headers = {"content-security-policy": POLICY}
    if name == "empty":
        route.fulfill(
            content_type="text/html", body="<!doctype html><title>empty</title><body></body>", headers=headers
        )
    elif name in MADE or path.is_file():
        body = MADE.get(name) or path.read_bytes()
        route.fulfill(content_type=TYPES[path.suffix], body=body, headers=headers)
    else:
        route.fulfill(status=404)


@pytest.fixture
def serve(fleet: Fleet) -> Iterator[Callable[..., Served]]:
    with serving(fleet) as start:
        yield start


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Twelve jobs: results of two methods, failures of two causes, and one that is held. For tests that only look."""
    with fleet_at(tmp_path_factory.mktemp("lab") / "a'; echo foo") as fleet:
        fill(fleet)
        yield fleet


@pytest.fixture(scope="module")
def served(lab: Fleet) -> Iterator[Served]:
    """A read-only page of `lab`."""
    with serving(lab) as start:
        yield start()


def fill(fleet: Fleet) -> None:
    fleet.write_manifest(small_entries())
    fleet.run("hold", "held_s1")
    fleet.run_all("--slots", "2").end()


def small_entries() -> list[dict[str, Any]]:
    trained = itertools.product(("fft", "lora"), ("greek", "hindi"), (1, 2))
    failing = [{"job_id": f"broken_s{seed}", "method": "broken", "seed": seed, **_failing(seed)} for seed in (1, 2, 3)]
    held = {"job_id": "held_s1", "method": "fft", "lang": "greek", "seed": 9, "command": ["true"]}
    return [*(_training(*values) for values in trained), *failing, held]


def _training(method: str, lang: str, seed: int) -> dict[str, Any]:
    loss = {"fft": 1.0, "lora": 2.0}[method] + seed / 10
    script = (
        f"from dispatcher.contract import report_result\nreport_result(loss={loss}, acc={seed})\n"
        "for n in range(0, 101, 10): print(str(n) + '%', end='\\r')\nprint('\\nended <b>well</b>')"
    )
    values = {"method": method, "lang": lang, "seed": seed}
    return {"job_id": f"{method}_{lang}_s{seed}", **values, "command": [sys.executable, "-c", script]}


def _failing(seed: int) -> dict[str, Any]:
    script = f"echo step {seed}; echo 'ValueError: <script>alert(1)</script>' >&2; exit {3 if seed < 3 else 4}"
    return {"command": ["bash", "-c", script]}


RATES = tuple(10**-power for power in range(1, 6)) + tuple(3 * 10**-power for power in range(1, 6))
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes on device 0"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Sixty jobs at ten rates, as they were recorded: most are done, one has failed at each rate, three wait."""
    root = tmp_path_factory.mktemp("sweep") / "lab"
    (root / "templates").mkdir(parents=True)
    (root / "dispatcher.yaml").touch()
    with fleet_at(root) as fleet:
        entries = list(sweep_entries())
        fleet.write_manifest(entries)
        with Workspace(root, by="test").transaction() as tx:
            for entry in entries:
                tx.change(entry["job_id"], Event.QUEUED, Change(state=State.QUEUED))
            for number, entry in enumerate(entries[:-3]):
                record_end(fleet, tx, entry, has_failed=number % 6 == 5)
            tx.note(Paused(scope="muon", why="a node of it is broken"))
        yield fleet


@pytest.fixture(scope="module")
def sweep_page(sweep: Fleet) -> Iterator[Served]:
    with serving(sweep) as start:
        yield start("--allow-changes")


def sweep_entries() -> Iterator[dict[str, Any]]:
    for rate, method, seed in itertools.product(RATES, ("adamw", "muon"), (1, 2, 3)):
        values = {"method": method, "lr": rate, "act": "gelu", "depth": 12, "seed": seed}
        yield {"job_id": f"{method}_lr{rate:g}_s{seed}_warmup2000_cosine_bs256", **values}


def record_end(fleet: Fleet, tx: Any, entry: dict[str, Any], *, has_failed: bool) -> None:
    """An attempt with metrics of 50 steps, two seconds each, and a result that the rate decides."""
    job = entry["job_id"]
    tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1, pod="gpu-a", host="ws1"))
    directory = fleet.layout.attempt(job, 1).directory
    directory.mkdir(parents=True)
    worst = abs(math.log10(entry["lr"]) + 3)
    lines = [{"step": n, "wall_s": 2 * n, "loss": worst + 1 / (1 + n) + n % 2 / 10} for n in range(50)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if has_failed:
        ended = Change(state=State.FAILED, exit_code=1, reason="out of memory", error=OUT_OF_MEMORY)
        tx.change(job, Event.FAILED, ended)
        return
    tx.change(job, Event.DONE, Change(state=State.DONE, exit_code=0))
    (directory / "result.json").write_text(json.dumps({"val_loss": worst + entry["seed"] / 100}))
