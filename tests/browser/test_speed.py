"""A matrix of 1,200 jobs: how soon the first screen is there, and what a page asks for while nothing happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import large_matrix
import pytest
from fleet import Fleet, fleet_at
from web_servers import serving

from dispatcher.api import Workspace

pytestmark = pytest.mark.quiet
# On two cores that do nothing else.
FIRST_SCREEN_S = 1.0
TRIES = 5
# From the beginning of the navigation until the matrix and what runs are on the screen.
LOADED = """() => new Promise((done) => {
  const look = () => document.querySelector("#matrix .cell") && document.querySelector("#running tbody tr")
    ? requestAnimationFrame(() => done(performance.now() / 1000)) : setTimeout(look, 5);
  look();
})"""


class Filled(Fleet):
    """What fills a workspace with records, without running anything."""

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.root, by="test")

    def attempt(self, job: str, number: int = 1, **files: str) -> Any:
        paths = self.layout.attempt(job, number)
        paths.directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            getattr(paths, name).write_text(text)
        return paths.directory


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    root = tmp_path_factory.mktemp("large") / "lab"
    (root / "templates").mkdir(parents=True)
    (root / "dispatcher.yaml").touch()
    large_matrix.fill(Filled(root))
    with fleet_at(root) as fleet:
        yield fleet


def lateness() -> float:
    """How many times as long as its processor time a process takes now: 1 on a calm machine."""
    wall, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.05:
        pass
    return (time.monotonic() - wall) / (time.process_time() - used)


def test_the_first_screen_of_a_large_matrix_is_there_in_a_second(open_page: Callable[..., Any], large: Fleet) -> None:
    with serving(large) as start:
        served = start()
        page = open_page(served.link)
        page.evaluate(LOADED)
        tries = []
        for _ in range(TRIES):
            before = lateness()
            page.goto(served.base)
            took = page.evaluate(LOADED)
            tries.append(took / max(1.0, before, lateness()))
        assert min(tries) < FIRST_SCREEN_S, tries
        # Whatever the machine does: little is asked for, and little is made of it.
        asked = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
        assert len(asked) < 30, asked
        assert not any("uPlot.esm" in name for name in asked)
        assert page.evaluate("document.querySelectorAll('*').length") < 4_000


def test_an_idle_page_asks_seldom_and_is_answered_in_few_bytes(open_page: Callable[..., Any], large: Fleet) -> None:
    with serving(large) as start:
        page = open_page(start().link)
        page.evaluate(LOADED)
        # The week's account and the results come in.
        page.locator("#week .account").wait_for(timeout=60_000)
        page.wait_for_timeout(6_000)
        page.evaluate("performance.clearResourceTimings()")
        page.wait_for_timeout(9_000)
        asked = page.evaluate("performance.getEntriesByType('resource').map((one) => [one.name, one.decodedBodySize])")
        assert 1 <= len(asked) <= 6, asked
        assert all("/api/changes?since=" in name for name, _ in asked), asked
        assert max(size for _, size in asked) < 1_000, asked


def test_a_hidden_page_asks_hardly_at_all(open_page: Callable[..., Any], large: Fleet) -> None:
    with serving(large) as start:
        page = open_page(start().link)
        page.evaluate(LOADED)
        page.evaluate(
            """() => {
          Object.defineProperty(document, "hidden", { get: () => true });
          document.dispatchEvent(new Event("visibilitychange"));
        }"""
        )
        page.wait_for_timeout(5_000)
        page.evaluate("performance.clearResourceTimings()")
        page.wait_for_timeout(8_000)
        assert page.evaluate("performance.getEntriesByType('resource').length") <= 1
