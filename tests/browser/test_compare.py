"""Compared curves: a mean says over how many jobs it is, and a NaN beyond the last number is on the chart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fleet import Fleet


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
    assert [one.strip() for one in row.locator("td").all_inner_texts()] == ["2", "", "1 of 2 jobs"]


def test_a_nan_beyond_the_last_number_has_its_place_on_the_axis(bare_page: Any) -> None:
    seen = bare_page.evaluate(
        """async () => {
      const { table } = await import("/static/chart.js");
      return table([{ x: [1, 2], low: [5, 6], high: [7, 8], nan: [2, 9] }]);
    }"""
    )
    assert [[value for value in column if value is not None] for column in seen] == [[1, 2, 9], [5, 6], [7, 8], []]
