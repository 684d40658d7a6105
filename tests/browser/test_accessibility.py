"""axe-core finds nothing in any view, in the light and in the dark, on a screen and on a phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-core is not installed: scripts/install browser"
)
ADDRESSES = {
    "overview": "/",
    "filtered": "/?where=lr=0.1",
    "nothing": "/?where=lr=7",
    "rejected": "/?where=lrr=1&where=lr=0.1",
    "jobs": "/?view=jobs",
    "failed": "/?view=jobs&state=failed",
    "job": "/?job=adamw_lr0.1_s1_warmup2000_cosine_bs256&smooth=5",
    "compare": "/?view=compare&metric=loss&by=lr",
    "pods": "/?view=pods",
}
# Nothing is left out: contrast, names, roles, orders of headings, landmarks.
OPTIONS = {"resultTypes": ["violations"]}
# axe-core makes styles of its own, which the page's policy refuses: `bypass_csp`.


def found(page: Any) -> list[str]:
    results = axe.Axe().run(page, options=OPTIONS)
    return [f"{one['id']}: {node['html'][:200]}" for one in results.response["violations"] for node in one["nodes"][:3]]


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("width", [1440, 390])
def test_no_view_has_a_violation(open_page: Callable[..., Any], sweep_page: Any, scheme: str, width: int) -> None:
    page = open_page(color_scheme=scheme, bypass_csp=True)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(sweep_page.link)
    complaints = {}
    for name, address in ADDRESSES.items():
        page.goto(sweep_page.base + address)
        page.wait_for_selector("main section")
        page.wait_for_load_state("networkidle")
        if violations := found(page):
            complaints[name] = violations
    assert complaints == {}


def test_neither_has_what_opens(open_page: Callable[..., Any], sweep_page: Any, scheme: str) -> None:
    page = open_page(sweep_page.link, color_scheme=scheme, bypass_csp=True)
    page.goto(f"{sweep_page.base}/?view=jobs&state=queued,done")
    page.locator("#jobs tbody tr").first.wait_for()
    page.locator("summary", has_text="Columns").click()
    assert found(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("method=")
    page.locator("#filter-words [role=option]").first.wait_for()
    page.keyboard.press("ArrowDown")
    assert found(page) == []
    page.fill("#filter-field", "nokey=1")
    page.press("#filter-field", "Enter")
    page.locator("#filter-error").wait_for()
    assert found(page) == []
    page.locator("#jobs tbody input").first.check()
    page.get_by_role("button", name="Cancel 1").click()
    page.get_by_role("dialog").wait_for()
    assert found(page) == []
    page.keyboard.press("Escape")
    page.goto(f"{sweep_page.base}/?view=compare&metric=loss&by=lr")
    page.locator(".compared .u-over").hover(position={"x": 100, "y": 60})
    page.locator(".told li").first.wait_for()
    assert found(page) == []


def test_every_control_shows_that_it_has_the_focus(open_page: Callable[..., Any], sweep_page: Any) -> None:
    """And no tab is spent on each of hundreds of points."""
    page = open_page(sweep_page.link)
    for address in ("/?view=compare&metric=loss&by=lr", "/?view=jobs&state=failed", "/"):
        page.goto(sweep_page.base + address)
        page.wait_for_selector("main section")
        page.wait_for_load_state("networkidle")
        invisible, seen = [], 0
        for _ in range(150):
            page.keyboard.press("Tab")
            state = page.evaluate(FOCUS)
            if state is None:
                break
            seen += 1
            if not state["visible"]:
                invisible.append(state["html"])
        assert invisible == [] and 10 < seen < 150, (address, seen, invisible[:3])


FOCUS = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const style = getComputedStyle(one);
  const inner = one.querySelector("path, circle") && getComputedStyle(one.querySelector("path, circle"));
  const visible = style.outlineStyle !== "none" || (inner && inner.stroke === getComputedStyle(document.body).color);
  return { visible, html: one.outerHTML.slice(0, 160) };
}"""
