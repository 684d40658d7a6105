"""A job: its log with what a terminal folds, parts of it, the file; text of jobs is never HTML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet import Fleet, shell, wait_until

HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'


def log_of(page: Any) -> str:
    return str(page.locator("pre.log").text_content())


def wait_for_log(page: Any, words: str) -> None:
    page.wait_for_selector("pre.log")
    wait_until(lambda: words in log_of(page), f"{words!r} in the log")


def test_a_log_is_folded_and_its_file_can_be_saved(open_page: Callable[..., Any], served: Any, tmp_path: Path) -> None:
    page = open_page(served.link)
    page.goto(f"{served.base}/?job=fft_greek_s1")
    wait_for_log(page, "ended")
    assert log_of(page) == "100%\nended <b>well</b>\n"
    assert page.locator("pre.log").count() == 1
    assert page.locator("pre.log *").count() == 0
    with page.expect_download() as download:
        page.locator("#log").get_by_role("link", name="download").click()
    download.value.save_as(tmp_path / "log")
    assert (tmp_path / "log").read_bytes().startswith(b"0%\r10%\r")
    assert download.value.suggested_filename == "fft_greek_s1.1.log"


def test_a_job_shows_parameters_results_attempts_and_its_error(open_page: Callable[..., Any], served: Any) -> None:
    page = open_page(served.link)
    page.goto(f"{served.base}/?job=lora_hindi_s2")
    page.wait_for_selector("#attempts tbody tr")
    parameters = page.locator("#parameters").inner_text().split("\n")
    assert parameters[0] == "Parameters as run"
    assert parameters[parameters.index("lang") + 1] == "hindi"
    assert parameters[parameters.index("loss") + 1] == "2.2"
    page.goto(f"{served.base}/?job=broken_s3")
    page.wait_for_selector(".error")
    assert "exit 4" in page.locator(".error").inner_text()
    assert page.evaluate("window.alerted ?? null") is None
    assert "<script>alert(1)</script>" in page.locator(".error").inner_text()


def test_a_job_that_does_not_exist_is_explained(open_page: Callable[..., Any], served: Any) -> None:
    page = open_page(served.link)
    page.goto(f"{served.base}/?job=lora_hindi_s3")
    page.get_by_role("alert").get_by_text("lora_hindi_s").wait_for()


def test_what_is_newer_than_a_job_is_named_in_the_table_and_on_the_job(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    fleet.write_manifest([shell("train", "true"), shell("eval", "true", needs=["train"])])
    fleet.run_all()
    fleet.run("requeue", "train")
    fleet.run_all()
    page = open_page(serve().link)
    page.get_by_text("1 job began before what it needs was done again: eval").wait_for()
    words = "train (attempt 2) done again since"
    page.goto(f"{page.url.split('?')[0]}?view=jobs")
    page.locator("tr", has_text="eval").get_by_text(words).wait_for()
    page.get_by_role("link", name="eval").click()
    page.locator("#record").get_by_text(words).wait_for()


def test_a_long_log_begins_at_its_end_and_earlier_parts_are_loaded(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    fleet.write_manifest([shell("long", "seq 1 40000 | sed 's/^/line /'")])
    fleet.run_all()
    served = serve()
    page = open_page(served.link)
    page.goto(f"{served.base}/?job=long")
    wait_for_log(page, "line 40000\n")
    first = log_of(page).split("\n")[1]
    assert first != "line 1"
    at_end = "(e) => e.scrollHeight - e.scrollTop - e.clientHeight < 2"
    assert page.locator("pre.log").evaluate(at_end)
    while page.get_by_role("button", name="Load earlier").count():
        before = len(log_of(page))
        page.get_by_role("button", name="Load earlier").click()
        wait_until(lambda before=before: len(log_of(page)) > before, "an earlier part of the log")
        assert not page.locator("pre.log").evaluate("(e) => e.scrollTop === 0")
    assert log_of(page) == "".join(f"line {number}\n" for number in range(1, 40001))


def test_a_running_log_is_followed_and_the_selection_stays(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    go = fleet.root / "go"
    fleet.write_manifest(
        [shell("slow", "echo begun; while [ ! -e $DISPATCHER_ROOT/go ]; do sleep 0.1; done; echo 'and on'")]
    )
    fleet.start().ready()
    fleet.wait_running("slow")
    served = serve()
    page = open_page(served.link)
    page.goto(f"{served.base}/?job=slow")
    wait_for_log(page, "begun")
    page.evaluate("getSelection().setBaseAndExtent(document.querySelector('h1'), 0, document.querySelector('h1'), 1)")
    go.touch()
    page.wait_for_function("document.querySelector('pre.log')?.textContent.includes('and on')", timeout=20_000)
    page.locator(".subject .state").get_by_text("done").wait_for()
    assert page.evaluate("String(getSelection())") == "slow"


def test_what_jobs_write_is_text(open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]) -> None:
    # The last one has the form of what the page's modules draw from.
    drawn = {"tag": "img", "props": {"src": "x", "onerror": "window.pwned=1"}, "children": []}
    values = {"note": HOSTILE, "lang": HOSTILE, "drawn": drawn, "list": [drawn]}
    fleet.write_manifest(
        [
            shell("bad", f"echo '{HOSTILE}'; echo 'ValueError: {HOSTILE}' >&2; exit 1", **values),
            shell("good", f"echo '{HOSTILE}'", **values),
        ]
    )
    fleet.run_all()
    served = serve()
    page = open_page(served.link)
    for address in ("/", "/?view=jobs", "/?job=bad", "/?job=good", "/?view=pods"):
        page.goto(served.base + address)
        page.wait_for_selector("main section")
        page.wait_for_timeout(300)
        assert page.evaluate("window.pwned ?? null") is None, address
        assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0, address
    page.goto(f"{served.base}/?job=bad")
    wait_for_log(page, "onerror")
    assert HOSTILE in log_of(page)
    assert '{"tag":"img"' in page.locator("#parameters").inner_text().replace(" ", "")
