"""Compared curves: a mean says over how many jobs it is, and a NaN beyond the last number is on the chart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fleet import Fleet, wait_until


def test_a_mean_says_how_many_jobs_it_is_over(open_page: Callable[..., Any], lab: Fleet, served: Any) -> None:
    for seed, steps in ((1, 3), (2, 6)):
        lines = [json.dumps({"step": step, "loss": float(seed)}) for step in range(steps)]
        path = lab.root / "run_state" / "jobs" / f"fft_greek_s{seed}" / "1" / "metrics.jsonl"
        path.write_text("\n".join([*lines, ""]))
    page = open_page(served.link)
    page.goto(f"{served.base}/?view=compare&metric=loss&by=method&where=lang=greek")
    row = page.locator("table.groups tbody tr")
    row.wait_for()
    # The shorter one has ended before.
    assert [one.strip() for one in row.locator("td").all_inner_texts()][:3] == ["2", "", "1 of 2"]


def test_a_nan_beyond_the_last_number_has_its_place_on_the_axis(bare_page: Any) -> None:
    seen = bare_page.evaluate(
        """async () => {
      const { table } = await import("/static/chart.js");
      return table([{ x: [1, 2], low: [5, 6], high: [7, 8], nan: [2, 9] }]);
    }"""
    )
    assert [[value for value in column if value is not None] for column in seen] == [[1, 2, 9], [5, 6], [7, 8], []]


@pytest.fixture
def compare(open_page: Callable[..., Any], sweep_page: Any) -> Callable[[str], Any]:
    def open_(settings: str) -> Any:
        page = open_page(sweep_page.link)
        page.goto(f"{sweep_page.base}/?view=compare&metric=loss&{settings}")
        page.locator("table.groups tbody tr").first.wait_for()
        return page

    return open_


def names(page: Any) -> list[str]:
    return [str(one) for one in page.locator("table.groups tbody th").all_inner_texts()]


def test_more_groups_than_colours_are_told_apart(compare: Callable[[str], Any]) -> None:
    page = compare("by=lr")
    assert len(names(page)) == 10
    looks = page.locator("table.groups .swatch-line").evaluate_all(
        "all => all.map((one) => [one.className.baseVal, one.firstChild.getAttribute('stroke-dasharray')].join())"
    )
    assert len(set(looks)) == 10


def test_all_jobs_may_be_one_group(compare: Callable[[str], Any]) -> None:
    page = compare("by=lr")
    page.locator("select[name=by]").select_option("")
    wait_until(lambda: names(page) == ["all of them"], "one group")


def test_groups_beyond_those_follow(compare: Callable[[str], Any]) -> None:
    page = compare("by=job_id")
    assert len(names(page)) == 24
    page.get_by_text("Groups 1 to 24 of 57").wait_for()
    page.get_by_role("button", name="Next").click()
    page.get_by_text("Groups 25 to 48 of 57").wait_for()
    page.get_by_role("button", name="Next").click()
    page.get_by_text("Groups 49 to 57 of 57").wait_for()
    assert len(names(page)) == 9


def test_the_crosshair_has_the_values_of_the_lines(compare: Callable[[str], Any]) -> None:
    page = compare("by=lr")
    over = page.locator(".compared .u-over")
    over.hover(position={"x": 1, "y": 40})
    told = page.locator(".compared .told")
    told.get_by_text("step 0").wait_for()
    rows = [row.split("\n")[:2] for row in told.locator("li").all_inner_texts()]
    # 1 at the first step, more by the distance of the rate from 0.001.
    assert ["lr=0.001", "1"] in rows and ["lr=0.1", "3"] in rows
    values = [float(value) for _, value in rows]
    assert values == sorted(values, reverse=True)
    page.mouse.move(0, 0)
    assert told.is_hidden()


def test_arrow_keys_move_the_crosshair_and_it_is_read_aloud(compare: Callable[[str], Any]) -> None:
    page = compare("by=lr")
    chart = page.get_by_role("group", name="Chart of loss by step")
    chart.focus()
    page.keyboard.press("Home")
    assert page.locator(".compared .told p").first.inner_text() == "step 0"
    page.keyboard.press("ArrowRight")
    assert page.locator(".compared .told p").first.inner_text() == "step 1"
    assert "lr=0.001 " in page.locator(".compared [aria-live]").text_content()
    page.keyboard.press("Escape")
    assert page.locator(".compared .told").is_hidden()


def test_a_line_is_hidden_by_its_name_and_shown_again(compare: Callable[[str], Any]) -> None:
    page = compare("by=lr")
    toggle = page.locator("table.groups").get_by_role("button", name="lr=0.1", exact=True)
    assert toggle.get_attribute("aria-pressed") == "true"
    toggle.press("Enter")
    page.wait_for_url("**hide=lr=0.1*")
    page.locator(".compared .u-over").hover(position={"x": 1, "y": 40})
    page.locator(".compared .told li").first.wait_for()
    assert "lr=0.1" not in page.locator(".compared .told li > span").all_inner_texts()
    page.reload()
    page.locator("table.groups button[aria-pressed=false]").wait_for()
    page.get_by_role("button", name="Only lr=0.001", exact=True).click()
    wait_until(lambda: page.locator("table.groups button[aria-pressed=false]").count() == 9, "one line is left")
    page.get_by_role("button", name="Show all lines").click()
    wait_until(lambda: page.locator("table.groups button[aria-pressed=false]").count() == 0, "all lines")


def test_curves_go_along_time(compare: Callable[[str], Any]) -> None:
    page = compare("by=lr")
    page.locator("select[name=along]").select_option("wall_s")
    page.wait_for_url("**along=wall_s*")
    chart = page.get_by_role("group", name="Chart of loss by time of training")
    chart.wait_for()
    chart.focus()
    page.keyboard.press("End")
    # 49 steps of two seconds.
    assert page.locator(".compared .told p").first.inner_text() == "2 min"


def test_smoothing_neither_lags_nor_moves_the_ends(bare_page: Any) -> None:
    seen = bare_page.evaluate(
        """async () => {
      const { smooth } = await import("/static/lines.js");
      const x = Array.from({ length: 101 }, (_, n) => n);
      const straight = x.map((one) => 3 * one);
      const zigzag = x.map((one) => one % 2);
      const holes = x.map((one) => (one % 10 ? one : null));
      const of = (y) => smooth({ x, low: y, high: y }, 0.1, 100).middle;
      return [of(straight), of(zigzag), of(holes), smooth({ x, low: x, high: x }, 0, 100).middle ?? null];
    }"""
    )
    straight, zigzag, holes, none = seen
    assert straight == pytest.approx([3 * one for one in range(101)])
    assert all(0.4 < value < 0.6 for value in zigzag[5:-5]) and zigzag[0] == 0
    assert holes[10] is None and holes[15] == pytest.approx(15)
    assert none is None


def test_a_job_has_a_crosshair_and_smoothing_too(open_page: Callable[..., Any], sweep_page: Any) -> None:
    page = open_page(sweep_page.link)
    page.goto(f"{sweep_page.base}/?job=adamw_lr0.1_s1_warmup2000_cosine_bs256")
    page.locator("#curves .u-over").hover(position={"x": 1, "y": 40})
    assert page.locator("#curves .told b").inner_text() == "3"
    page.get_by_label("Smoothing").fill("3")
    page.wait_for_url("**smooth=5*")
    page.locator("#curves select[name=along]").select_option("wall_s")
    page.get_by_role("group", name="Chart of loss by time of training").wait_for()


def test_importance_and_all_parameters_stand_beside_the_scatter(compare: Callable[[str], Any]) -> None:
    page = compare("by=lr")
    page.locator("table.importance tbody tr").first.wait_for(timeout=30_000)
    wait_until(lambda: page.locator(".parallel a").count() == 48, "the results are read")
    rows = page.locator("table.importance tbody tr").all_inner_texts()
    name, share, *_ = rows[0].split("\t")
    assert name == "lr" and 80 < int(share.removesuffix(" %")) <= 100
    assert "The same in all jobs: act, depth" in page.locator("#scatter").inner_text()
    page.get_by_role("button", name="seed", exact=True).click()
    page.get_by_role("group", name="val_loss by seed").wait_for()
    assert page.locator(".parallel .axis .name").all_text_contents()[-1].endswith("val_loss")
    # Neither picture takes a tab for each of its jobs.
    for picture in (".scatter", ".parallel"):
        assert page.locator(f"{picture} a[tabindex='0']").count() == 1
    page.locator(".parallel a[tabindex='0']").focus()
    before = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") != before


def test_dragging_along_an_axis_keeps_the_lines_that_pass_there(compare: Callable[[str], Any]) -> None:
    page = compare("by=lr")
    wait_until(lambda: page.locator(".parallel a").count() == 48, "the results are read")
    grip = page.locator("[data-axis=val_loss] .grip")
    grip.scroll_into_view_if_needed()
    box = grip.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 2, steps=5)
    page.mouse.up()
    kept = page.locator(".parallel a.is-kept").count()
    assert 0 < kept < 48 and page.locator(".parallel a.is-out").count() == 48 - kept
    page.get_by_text(f"{kept} of 48 lines").wait_for()
    page.get_by_role("button", name="Show all", exact=True).click()
    assert page.locator(".parallel a.is-out").count() == 0


AXES = """async (rows) => {
  const { Parallel } = await import("/static/views/parallel.js");
  const { render } = await import("/static/dom.js");
  const data = { axes: Object.keys(rows[0]?.values ?? {}), y: "loss", jobs: rows.length,
    rows: rows.map(({ values, ...row }) => ({ ...row, values: Object.values(values) })) };
  render(document.body, new Parallel({ draw() {} }).draw(data, new URLSearchParams()));
  return [...document.querySelectorAll("path")].map((one) => one.getAttribute("d"));
}"""


def test_numbers_of_any_size_have_a_place_on_an_axis(bare_page: Any) -> None:
    places = bare_page.evaluate(
        """async () => {
      const { scale } = await import("/static/scales.js");
      const { place, ticks } = scale([-1.7e308, 0, 1.7e308], 0, 100);
      return [[-1.7e308, 0, 1.7e308].map((value) => place(value)), ticks.length];
    }"""
    )
    assert places == [[pytest.approx(2.7, abs=0.1), pytest.approx(50), pytest.approx(97.3, abs=0.1)], 3]


def test_what_is_no_number_and_what_is_constant_has_an_axis(bare_page: Any) -> None:
    values = [(1, "gelu", True), (None, "<b>relu</b>", False), (1, "gelu", None)]
    rows = [{"job": f"j{n}", "y": 1.0, "values": {"lr": a, "act": b, "flag": c}} for n, (a, b, c) in enumerate(values)]
    lines = bare_page.evaluate(AXES, rows)
    assert len(lines) == 3 and not any("NaN" in one or "null" in one for one in lines)
    assert bare_page.locator("b").count() == 0 and "<b>relu</b>" in bare_page.locator("svg").text_content()
    assert bare_page.evaluate(AXES, rows[:1]) == [one for one in bare_page.evaluate(AXES, rows[:1]) if "NaN" not in one]
