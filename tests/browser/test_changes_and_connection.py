"""Changes from the page are real; a server that goes away is told, and the page goes on when it is back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fleet import Fleet, shell, wait_until
from ports import free_port

FAILING = 23


@pytest.fixture
def failed_lab(fleet: Fleet) -> Fleet:
    """More failed jobs of one cause than are queued again without a question, and two of another."""
    entries = [
        shell(f"many_s{seed}", "echo 'ValueError: bad data' >&2; exit 1", method=f"m{seed}") for seed in range(FAILING)
    ]
    fleet.write_manifest([*entries, *(shell(f"few_s{seed}", "exit 7", method=f"few{seed}") for seed in (1, 2))])
    fleet.run_all("--slots", "4")
    assert set(fleet.states().values()) == {"failed"}
    return fleet


def test_requeue_queues_the_jobs_of_one_cause_again(
    open_page: Callable[..., Any], failed_lab: Fleet, serve: Callable[..., Any]
) -> None:
    page = open_page(serve("--allow-changes").link)
    few = page.locator("#failures li", has_text="exit 7")
    few.get_by_role("button", name="Requeue 2").click()
    page.locator(".message").get_by_text("2 jobs queued again").wait_for()
    assert sorted(job for job, state in failed_lab.states().items() if state == "queued") == ["few_s1", "few_s2"]
    line = failed_lab.history("few_s1")[-1]
    assert line.event == "requeued"
    # The page shows it without a reload.
    few.wait_for(state="detached")
    page.locator("#progress .states").get_by_text("queued").wait_for()


def test_many_jobs_are_queued_again_only_after_a_question(
    open_page: Callable[..., Any], failed_lab: Fleet, serve: Callable[..., Any]
) -> None:
    page = open_page(serve("--allow-changes").link)
    button = page.get_by_role("button", name=f"Requeue {FAILING}")
    button.click()
    question = page.get_by_role("dialog")
    assert f"{FAILING} failed jobs" in question.inner_text()
    page.keyboard.press("Escape")
    question.wait_for(state="detached")
    assert set(failed_lab.states().values()) == {"failed"}
    button.click()
    question.get_by_role("button", name=f"Requeue {FAILING} jobs").click()
    page.locator(".message").get_by_text(f"{FAILING} jobs queued again").wait_for()
    queued = [job for job, state in failed_lab.states().items() if state == "queued"]
    assert sorted(queued) == sorted(f"many_s{seed}" for seed in range(FAILING))


def test_chosen_jobs_are_held_and_a_job_is_cancelled_from_its_view(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    fleet.write_manifest([shell(f"job_s{seed}", "true") for seed in range(4)])
    fleet.run("hold", "job_s0")
    served = serve("--allow-changes")
    page = open_page(served.link)
    page.goto(f"{served.base}/?view=jobs")
    for seed in (1, 2):
        page.get_by_label(f"Choose job_s{seed}", exact=True).check()
    page.get_by_role("button", name="Hold 2").click()
    page.locator(".message").get_by_text("2 jobs held").wait_for()
    assert [fleet.states().get(f"job_s{seed}") for seed in range(3)] == ["held", "held", "held"]
    page.goto(f"{served.base}/?job=job_s1")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("button", name="Cancel 1 job").click()
    page.locator(".subject .state").get_by_text("abandoned").wait_for()
    assert fleet.states()["job_s1"] == "abandoned"


def test_a_change_that_is_refused_is_explained(
    open_page: Callable[..., Any], failed_lab: Fleet, serve: Callable[..., Any]
) -> None:
    served = serve("--allow-changes", port=free_port())
    page = open_page(served.link)
    button = page.get_by_role("button", name="Requeue 2", exact=True)
    button.wait_for()
    served.stop()
    again = serve(port=served.port)
    page.goto(again.link)
    page.get_by_text("read-only").wait_for()
    assert page.get_by_role("button", name=re.compile("Requeue")).count() == 0
    # A page that was opened before knows nothing of that.
    refused = page.evaluate(
        """async () => (await import("/static/api.js")).post("api/changes/requeue", { jobs: ["few_s1"] })
          .catch((error) => [error.status, error.message])"""
    )
    assert refused[0] == 403
    assert "--allow-changes" in refused[1]
    assert set(failed_lab.states().values()) == {"failed"}


def test_a_server_that_is_gone_is_told_and_the_page_goes_on_when_it_is_back(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    fleet.write_manifest([shell(f"job_s{seed}", "true") for seed in range(3)])
    fleet.run("hold", "job_s0")
    served = serve(port=free_port())
    page = open_page(served.link)
    page.locator("#progress .states").get_by_text("held").wait_for()
    served.kill()
    banner = page.locator("#banner")
    banner.get_by_text("No answer from the server").wait_for(timeout=15_000)
    assert "What you see is from" in banner.inner_text()
    # What was known stays on the screen.
    assert page.locator(".headline").count() == 1
    # Another start has another token, and does not know this browser until its link is opened in any tab.
    again = serve(port=served.port)
    banner.get_by_text("open the link").wait_for(timeout=40_000)
    fleet.run("hold", "job_s1")
    page.context.new_page().goto(again.link)
    page.bring_to_front()
    # Its button needs no scrolling; a page that has just come back by itself has no banner any more.
    page.evaluate("document.querySelector('#banner button')?.click()")
    banner.wait_for(state="detached")
    wait_until(lambda: "2 held" in held(page), "the change meanwhile is shown")


def test_while_the_workspace_is_read_the_page_says_so_and_goes_on_by_itself(
    open_page: Callable[..., Any], failed_lab: Fleet, serve: Callable[..., Any]
) -> None:
    served = serve()
    page = open_page(served.link)
    page.locator(".headline").wait_for()
    loading = {"error": "the workspace is being read, for 1 s now", "loading": True}
    page.route("**/api/**", lambda route: route.fulfill(status=503, json=loading))
    for address in ("/", "/?view=jobs"):
        page.goto(f"{served.base}{address}")
        page.get_by_text("Reading the workspace …").wait_for()
        assert page.locator("#banner, .problem").count() == 0
    page.unroute("**/api/**")
    page.locator("main tbody tr").first.wait_for()


def test_a_change_without_an_answer_is_not_said_to_be_refused(
    open_page: Callable[..., Any], failed_lab: Fleet, serve: Callable[..., Any]
) -> None:
    served = serve("--allow-changes", port=free_port())
    page = open_page(served.link)
    button = page.get_by_role("button", name="Requeue 2", exact=True)
    button.wait_for()
    served.kill()
    button.click()
    page.locator(".message").get_by_text("Whether it was done shows when the server answers again").wait_for()
    assert "refused" not in page.locator(".message").inner_text()
    assert set(failed_lab.states().values()) == {"failed"}


def test_the_page_goes_on_after_an_interruption(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    fleet.write_manifest([shell(f"job_s{seed}", "true") for seed in range(3)])
    fleet.run("hold", "job_s0")
    served = serve()
    page = open_page(served.link)
    page.locator("#progress .states").get_by_text("held").wait_for()
    page.context.set_offline(True)
    page.locator("#banner").wait_for(timeout=15_000)
    fleet.run("hold", "job_s1")
    page.context.set_offline(False)
    page.locator("#banner").wait_for(state="detached", timeout=40_000)
    wait_until(lambda: "2 held" in held(page), "the change meanwhile is shown")


def held(page: Any) -> str:
    return str(page.locator("#progress .states").inner_text())


def test_an_open_page_shows_what_changes_and_its_age(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    fleet.write_manifest([shell(f"job_s{seed}", "true") for seed in range(3)])
    fleet.run("hold", "job_s0")
    page = open_page(serve().link)
    page.wait_for_selector("#matrix .cell")
    page.evaluate("window.kept = document.querySelector('.headline')")
    fleet.run_all()
    page.locator(".headline").get_by_text("2", exact=True).wait_for()
    page.locator("#matrix .cell").first.wait_for()
    assert page.evaluate("window.kept === document.querySelector('.headline')")
    assert re.search(r"data (\d+ s old|of )", page.locator("#age").inner_text())
