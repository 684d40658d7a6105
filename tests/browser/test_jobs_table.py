"""The table of jobs: columns to choose, heads that stay, cards on a phone; a question before a cancellation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browser.conftest import OUT_OF_MEMORY
from fleet import Fleet, shell, wait_until

PHONE = {"width": 390, "height": 800}


@pytest.fixture
def table(open_page: Callable[..., Any], sweep_page: Any) -> Any:
    page = open_page(sweep_page.link)
    page.goto(f"{sweep_page.base}/?view=jobs")
    page.locator("#jobs thead").get_by_text("val_loss").wait_for(timeout=30_000)
    return page


def heads(page: Any) -> list[str]:
    return [one for one in page.locator("#jobs thead th").all_inner_texts() if one]


def test_methods_that_differ_have_a_column(table: Any) -> None:
    assert heads(table) == ["State", "Job", "Method", "lr", "seed", "val_loss", "Where", "Why"]
    assert table.locator("#jobs tbody tr").first.locator("td").nth(3).inner_text() == "adamw"


def test_columns_are_chosen_and_are_in_the_address(table: Any) -> None:
    table.locator("summary", has_text="Columns").click()
    table.get_by_label("depth", exact=True).check()
    table.get_by_label("Method", exact=True).uncheck()
    table.get_by_label("Exit status", exact=True).check()
    shown = ["State", "Job", "lr", "depth", "seed", "val_loss", "Where", "Exit status", "Why"]
    wait_until(lambda: heads(table) == shown, f"the columns: {heads(table)}")
    table.reload()
    wait_until(lambda: heads(table) == shown, "the columns after a reload")
    assert table.locator("#jobs tbody tr").first.locator("td").nth(4).inner_text() == "12"
    # Whoever looks at a job and comes back finds them as they were.
    table.locator("#jobs a.job").first.click()
    table.locator("h1").get_by_text("adamw_lr").wait_for()
    table.get_by_role("link", name="Jobs", exact=True).click()
    wait_until(lambda: heads(table) == shown, "the columns after a look at a job")
    table.locator("summary", has_text="Columns").click()
    table.get_by_role("button", name="The usual columns").click()
    wait_until(lambda: "Method" in heads(table) and "depth" not in heads(table), "the usual columns")


def test_the_list_of_columns_closes_with_escape_and_a_click_elsewhere(table: Any) -> None:
    menu = table.locator("details.menu")
    table.locator("summary", has_text="Columns").press("Enter")
    table.get_by_label("depth", exact=True).focus()
    table.keyboard.press("Escape")
    assert menu.get_attribute("open") is None
    assert table.evaluate("document.activeElement.localName") == "summary"
    table.locator("summary", has_text="Columns").click()
    table.locator("h2").first.click()
    assert menu.get_attribute("open") is None


@pytest.mark.parametrize("address", ["/?view=jobs", "/?rows=job_id&columns=lr"])
def test_heads_and_names_stay_while_rows_scroll(open_page: Callable[..., Any], sweep_page: Any, address: str) -> None:
    page = open_page(sweep_page.link)
    page.set_viewport_size({"width": 700, "height": 600})
    page.goto(sweep_page.base + address)
    page.locator(".scroll.tall tbody tr").nth(40).wait_for()
    room = page.locator(".scroll.tall").first
    head, name = room.locator("thead .job, thead .corner"), room.locator("tbody tr").nth(30).locator("th, td.job").first
    room.scroll_into_view_if_needed()
    before = head.bounding_box()["y"] - room.bounding_box()["y"]
    room.evaluate("one => one.scrollTo(400, 500)")
    # What stands above the table scrolls away, the heads do not.
    assert -1 <= head.bounding_box()["y"] - room.bounding_box()["y"] <= before + 1
    assert name.bounding_box()["x"] == pytest.approx(room.bounding_box()["x"], abs=1)
    # Nothing that scrolls lies above it.
    box = head.bounding_box()
    at = "([x, y]) => document.elementFromPoint(x, y).closest('thead') !== null"
    assert page.evaluate(at, [box["x"] + 10, box["y"] + box["height"] / 2])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_a_failed_job_says_why(open_page: Callable[..., Any], sweep_page: Any, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    page.set_viewport_size(PHONE)
    page.goto(sweep_page.link)
    page.goto(f"{sweep_page.base}/?view=jobs&state=failed")
    why = page.locator("#jobs tbody tr").first.get_by_text(OUT_OF_MEMORY)
    why.wait_for()
    box = why.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"] and box["y"] < PHONE["height"]
    card = page.locator("#jobs tbody tr").first
    assert card.locator("a.job").bounding_box()["width"] > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    # It can still be sorted, and a screen reader still finds a table.
    page.get_by_role("columnheader", name="lr").get_by_role("button").click()
    page.get_by_role("columnheader", name="lr").and_(page.locator("[aria-sort=ascending]")).wait_for()
    assert page.get_by_role("row").count() > 5 and page.get_by_role("cell", name=OUT_OF_MEMORY).count() > 0


def test_cancel_asks_and_its_buttons_cannot_be_confused(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    fleet.write_manifest([shell(f"job_s{seed}", "true") for seed in range(3)])
    served = serve("--allow-changes")
    page = open_page(served.link)
    page.goto(f"{served.base}/?job=job_s1")
    page.get_by_role("button", name="Cancel job").click()
    dialog = page.get_by_role("dialog", name="Cancel job job_s1?")
    assert dialog.get_by_role("button").all_inner_texts() == ["Keep the job", "Cancel 1 job"]
    assert page.evaluate("document.activeElement.textContent") == "Keep the job"
    page.keyboard.press("Enter")
    dialog.wait_for(state="detached")
    page.get_by_role("button", name="Cancel job").click()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert fleet.states().get("job_s1", "queued") == "queued"
    page.goto(f"{served.base}/?view=jobs")
    for seed in (1, 2):
        page.get_by_label(f"Choose job_s{seed}", exact=True).check()
    page.get_by_role("button", name="Cancel 2").click()
    dialog = page.get_by_role("dialog", name="Cancel 2 jobs?")
    assert dialog.get_by_role("button").all_inner_texts() == ["Keep the jobs", "Cancel 2 jobs"]
    dialog.get_by_role("button", name="Cancel 2 jobs").click()
    page.locator(".message").get_by_text("2 jobs cancelled").wait_for()
    assert [fleet.states().get(f"job_s{seed}", "queued") for seed in range(3)] == ["queued", "abandoned", "abandoned"]
