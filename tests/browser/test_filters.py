"""Filters: what is typed is completed, what makes no sense is said beside it, and what is shown is of these jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fleet import Fleet, shell, wait_until
from ports import free_port

FIELD = "#filter-field"
ERROR = "#filter-error"


@pytest.fixture
def page(open_page: Callable[..., Any], served: Any) -> Any:
    page = open_page(served.link)
    page.wait_for_selector("#matrix .cell .mean")
    return page


def enter(page: Any, words: str) -> None:
    page.fill(FIELD, words)
    page.press(FIELD, "Enter")


def options(page: Any) -> list[str]:
    return [str(one) for one in page.locator("#filter-words [role=option] span").all_inner_texts()]


def test_what_was_typed_wrongly_stays_with_its_error_and_the_page_with_it(page: Any, served: Any) -> None:
    shown = page.locator("main").inner_text()
    enter(page, "langg=hindi")
    page.locator(ERROR).get_by_text("langg").wait_for()
    assert "'lang'" in page.locator(ERROR).inner_text()
    assert page.input_value(FIELD) == "langg=hindi"
    assert page.locator(FIELD).get_attribute("aria-invalid") == "true"
    assert page.locator(FIELD).get_attribute("aria-describedby") == "filter-error"
    assert page.url == f"{served.base}/" and page.locator("#banner, .chip").count() == 0
    assert re.sub(r"\d+ (s|min) ago", "", page.locator("main").inner_text()) == re.sub(r"\d+ (s|min) ago", "", shown)
    # It is gone as soon as something else is typed.
    page.type(FIELD, "x")
    page.locator(ERROR).wait_for(state="detached")


@pytest.mark.parametrize("view", ["", "view=jobs&", "view=compare&", "job=fft_greek_s1&"])
def test_a_wrong_filter_of_an_address_is_not_applied_and_the_others_are(
    open_page: Callable[..., Any], served: Any, view: str
) -> None:
    page = open_page(served.link)
    page.goto(f"{served.base}/?{view}where=langg=hindi&where=lang=greek&state=dnoe")
    page.locator(".chip.is-off").nth(1).wait_for()
    assert page.locator(".chip.is-off").all_inner_texts()[0].startswith("not applied: langg=hindi")
    assert page.locator(ERROR).locator("p").count() == 2
    page.locator("main section").first.wait_for()
    assert page.locator("#banner").count() == 0
    page.get_by_role("button", name="Remove the filter langg=hindi").click()
    page.get_by_role("button", name="Remove the filter dnoe").click()
    page.locator(ERROR).wait_for(state="detached")
    assert page.locator(".chip span").all_inner_texts() == ["lang=greek"]


def test_a_changing_page_is_not_called_read_only_because_of_a_filter(
    open_page: Callable[..., Any], sweep_page: Any
) -> None:
    page = open_page(sweep_page.link)
    page.goto(f"{sweep_page.base}/?where=lrr=1")
    page.locator(ERROR).wait_for()
    page.locator(".headline").wait_for()
    assert page.get_by_text("read-only").count() == 0


def test_words_and_globs_search_ids(page: Any, served: Any) -> None:
    enter(page, "hindi")
    page.locator(".headline").get_by_text("of 4 jobs done").wait_for()
    assert page.url == f"{served.base}/?where=hindi" and page.locator(".chip").inner_text().startswith("id hindi")
    enter(page, "*_s1 fft")
    page.locator(".headline").get_by_text("of 1 job done").wait_for()
    page.goto(f"{served.base}/?view=jobs&where=greek,broken")
    page.wait_for_selector("#jobs tbody tr")
    assert page.locator("#jobs tbody tr").count() == 7
    page.goto(f"{served.base}/")
    enter(page, "failed broken_s?")
    page.locator(".headline").get_by_text("of 3 jobs done").wait_for()
    assert page.locator(".chip span").all_inner_texts() == ["id broken_s?", "failed"]


def test_values_are_completed_by_the_keyboard(page: Any) -> None:
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter-field"
    page.keyboard.type("met")
    assert "method=" in options(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    wait_until(lambda: options(page) == ["method=broken", "method=fft", "method=lora"], "the values")
    assert page.locator(FIELD).get_attribute("aria-expanded") == "true"
    page.keyboard.type("l")
    wait_until(lambda: options(page) == ["method=lora"], "the value")
    assert "4 jobs" in page.locator("#filter-words").inner_text()
    page.keyboard.press("ArrowDown")
    active = page.locator(FIELD).get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"
    page.keyboard.press("Enter")
    page.locator(".headline").get_by_text("of 4 jobs done").wait_for()
    assert page.locator(".chip span").inner_text() == "method=lora" and page.input_value(FIELD) == ""


def test_a_value_can_be_clicked_and_a_further_one_is_completed(page: Any) -> None:
    page.fill(FIELD, "hind")
    page.locator("#filter-words").get_by_text("lang=hindi").click()
    page.locator(".chip").get_by_text("lang=hindi").wait_for()
    page.fill(FIELD, "seed=1,")
    wait_until(lambda: options(page) == ["seed=1,2", "seed=1,3", "seed=1,9"], "the other values")
    page.keyboard.press("Escape")
    assert page.locator("#filter-words").is_hidden() and page.input_value(FIELD) == "seed=1,"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") != "filter-field"


def test_a_slash_within_a_field_is_a_slash(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("a/b")
    assert page.input_value(FIELD) == "a/b"


def test_the_first_screen_of_a_filter_is_of_its_jobs_only(open_page: Callable[..., Any], sweep_page: Any) -> None:
    page = open_page(sweep_page.link)
    page.locator("#week").wait_for()
    page.locator("#attention").get_by_text("muon is paused").wait_for()
    # All of these have ended.
    page.goto(f"{sweep_page.base}/?where=lr=0.1")
    page.locator(".headline").get_by_text("of 6 jobs done").wait_for()
    assert "Nothing about these jobs" in page.locator("#attention").inner_text()
    figures = page.locator("#progress .figures").inner_text().split("\n")
    assert figures[figures.index("Left") + 1] == "none"
    assert page.locator("#week").count() == 0
    # The pause is for one of these.
    page.goto(f"{sweep_page.base}/?where=seed=1&where=method=muon")
    page.locator("#attention").get_by_text("muon is paused").wait_for()
    page.goto(f"{sweep_page.base}/?where=lr=0.1")
    page.get_by_role("link", name="1 in the whole workspace").click()
    page.locator("#week").wait_for()


def test_a_filter_without_jobs_tells_nothing_of_others(open_page: Callable[..., Any], sweep_page: Any) -> None:
    page = open_page(sweep_page.link)
    page.goto(f"{sweep_page.base}/?where=lr=7")
    page.get_by_role("heading", name="No job matches these filters").wait_for()
    assert page.locator("main section").count() == 1 and page.locator(".headline, .figures").count() == 0


def test_without_an_answer_a_filter_is_not_applied(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    fleet.write_manifest([shell(f"job_s{seed}", "true", lang="greek") for seed in range(3)])
    served = serve(port=free_port())
    page = open_page(served.link)
    page.locator(".headline").wait_for()
    served.kill()
    enter(page, "lang=greek")
    page.locator(ERROR).get_by_text("no answer").wait_for()
    page.locator("#banner").get_by_text("No answer from the server").wait_for(timeout=15_000)
    # What was shown stays, and is of all jobs.
    assert page.input_value(FIELD) == "lang=greek" and page.locator(".chip").count() == 0
    assert page.locator(".headline").count() == 1 and page.locator("#week").count() == 1
