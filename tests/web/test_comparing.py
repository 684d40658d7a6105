"""Jobs that are compared: as many of each group, whatever their order, and along steps or seconds of training."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

import pytest
from cli.conftest import Lab
from web.conftest import record_all

from dispatcher.query.comparing import MOST_GROUPS, MOST_JOBS
from dispatcher.query.curves import STEP, WALL
from dispatcher.web.board import Board, Filter
from dispatcher.web.comparing import choose, compare, parameters, scatter
from dispatcher.web.curves import MetricFiles
from dispatcher.web.matrix import matrix


def sweep(rates: list[float], seeds: int) -> list[dict[str, Any]]:
    """The jobs of one rate after those of the other, as a sweep file expands."""
    return [
        {"job_id": f"fft_lr{rate:g}_s{seed}", "method": "fft", "lr": rate, "seed": seed}
        for rate in rates
        for seed in range(seeds)
    ]


def log(lab: Lab, job: str, lines: list[Mapping[str, Any]]) -> None:
    (lab.attempt(job) / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def compared(board: Board, by: tuple[str, ...], x: str = STEP, first: int = 0, metric: str = "loss") -> dict[str, Any]:
    chosen = choose(board, (), Filter(), by, first)
    return compare(MetricFiles(), chosen, metric, x, 100, time.monotonic() + 60)


def test_as_many_jobs_of_each_group_are_compared(empty_lab: Lab) -> None:
    board = record_all(empty_lab, [*sweep([0.1, 0.01, 0.003], 110), *sweep([1.0], 5)])
    chosen = choose(board, (), Filter(), ("lr",))
    assert [(group.values, group.ran, len(group.jobs)) for group in chosen.groups] == [
        ((0.003,), 110, 65),
        ((0.01,), 110, 65),
        ((0.1,), 110, 65),
        ((1.0,), 5, 5),
    ]
    assert sum(len(group.jobs) for group in chosen.groups) == MOST_JOBS
    assert chosen.cut == "200 of the 335 jobs of these groups are compared, the same number of each"


def test_which_jobs_are_compared_is_neither_the_first_ones_nor_by_chance(empty_lab: Lab) -> None:
    board = record_all(empty_lab, sweep([0.1], 400))
    (group,) = choose(board, (), Filter(), ()).groups
    seeds = [int(job.rpartition("_s")[2]) for job, _ in group.jobs]
    assert len(seeds) == MOST_JOBS and seeds == sorted(seeds) and 150 < sum(seeds) / len(seeds) < 250
    assert choose(board, (), Filter(), ()).groups == [group]


def test_all_groups_are_reached_page_by_page(empty_lab: Lab) -> None:
    board = record_all(empty_lab, sweep([0.001 * number for number in range(1, 31)], 2))
    pages = [choose(board, (), Filter(), ("lr",), first) for first in (0, MOST_GROUPS)]
    assert [len(page.groups) for page in pages] == [24, 6] and {page.total_groups for page in pages} == {30}
    assert len({group.values for page in pages for group in page.groups}) == 30
    assert choose(board, (), Filter(), ("lr",), 99).groups == []


def test_a_group_without_the_metric_is_named(empty_lab: Lab) -> None:
    board = record_all(empty_lab, sweep([0.1, 0.01], 2))
    log(empty_lab, "fft_lr0.1_s0", [{"step": 1, "loss": 2.0}])
    found = compared(board, ("lr",))
    assert [(group["label"], group["n"], group["of"]) for group in found["groups"]] == [("lr=0.1", 1, 2)]
    assert found["absent"] == ["lr=0.01"] and found["without"] == 3


def test_values_of_other_types_are_groups_of_their_own(empty_lab: Lab) -> None:
    values = [False, 0, 0.0, "0", None, True]
    board = record_all(empty_lab, [{"job_id": f"job{n}", "method": "fft", "flag": one} for n, one in enumerate(values)])
    assert len(choose(board, (), Filter(), ("flag",)).groups) == len(values)


def test_values_that_look_alike_are_told_apart_also_where_a_browser_gets_them(empty_lab: Lab) -> None:
    """A browser takes 0 and 0.0 for the same number, and long texts are cut."""
    values: list[Any] = [0, 0.0, "0", False, "", "long " * 100 + "a", "long " * 100 + "b"]
    board = record_all(empty_lab, [{"job_id": f"job{n}", "method": "fft", "a,b": one} for n, one in enumerate(values)])
    for number in range(len(values)):
        empty_lab.attempt(f"job{number}", result=f'{{"loss": {number}}}')
        log(empty_lab, f"job{number}", [{"step": 1, "loss": number}])
    board.results.follow(board.snapshot, None)
    while board.read_results():
        pass
    points = scatter(board, "a,b", "loss", Filter())["points"]
    assert [point["x"] for point in points[:5]] == ["0", "0.0", '"0"', "false", '""']
    assert [row["values"] for row in parameters(board, "loss", Filter())["rows"]] == [[point["x"]] for point in points]
    labels = [group["label"] for group in compared(board, ("a,b",))["groups"]]
    assert len(set(labels)) == len(values) and labels[-1] == f"{labels[-2]} (2)"
    found = matrix(board, ("a,b,method",), (), None, Filter(), 0)
    assert found["row_keys"] == ("a,b", "method") and len(found["rows"]) == len(values)


def test_curves_go_by_the_seconds_of_training(empty_lab: Lab) -> None:
    board = record_all(empty_lab, sweep([0.1, 0.01], 1))
    log(empty_lab, "fft_lr0.1_s0", [{"step": step, "wall_s": 2 * step, "loss": step} for step in range(5)])
    # Without a time of its own a line lies between its neighbours; the NaN keeps its place.
    lines = [{"step": 0, "wall_s": 0, "loss": 1}, {"step": 5, "loss": 2}, {"step": 10, "wall_s": 100, "loss": "NaN"}]
    log(empty_lab, "fft_lr0.01_s0", lines)
    by_lr = {group["label"]: group for group in compared(board, ("lr",), WALL)["groups"]}
    assert by_lr["lr=0.1"]["x"] == [0, 2, 4, 6, 8] and by_lr["lr=0.1"]["mean"] == [0, 1, 2, 3, 4]
    assert by_lr["lr=0.01"]["x"] == [0, 50] and by_lr["lr=0.01"]["nan"] == [100]


def test_jobs_without_times_are_told(empty_lab: Lab) -> None:
    board = record_all(empty_lab, sweep([0.1], 2))
    log(empty_lab, "fft_lr0.1_s0", [{"step": 1, "wall_s": 3.5, "loss": 1.0}])
    log(empty_lab, "fft_lr0.1_s1", [{"step": 1, "loss": 1.0}])
    found = compared(board, (), WALL)
    assert found["cut"] == "1 job without times (wall_s)" and found["groups"][0]["n"] == 1
    assert math.isclose(found["groups"][0]["x"][0], 3.5)


@pytest.mark.parametrize("by", [(), ("lr",), ("lr", "method"), ("job_id",)])
def test_jobs_that_have_not_run_are_counted(empty_lab: Lab, by: tuple[str, ...]) -> None:
    entries = sweep([0.1], 3)
    board = record_all(empty_lab, entries)
    empty_lab.write_manifest([*entries, *sweep([0.2], 4)])
    board.look()
    assert compared(board, by)["not_run"] == 4
