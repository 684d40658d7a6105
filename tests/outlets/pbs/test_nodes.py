"""Attempts on several nodes: one process each, through pbs_tmrsh, and all end when one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from beds.pbs import PbsBed
from fleet import printed, wait_until
from outlets.places import PbsPlace

from dispatcher.outlets.base import Key, Request
from dispatcher.pod.error_line import last_error_line, until_first_end

pytestmark = pytest.mark.slow

TWO_NODES = Request(8, nodes=2)


@pytest.fixture
def place(pbs: PbsBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsPlace]:
    for name, value in pbs.env.items():
        monkeypatch.setenv(name, value)
    made = PbsPlace(tmp_path / "a'; echo foo", pbs)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def submit(place: PbsPlace) -> Callable[[str], Key]:
    def submitted(script: str) -> Key:
        bundle = place.claim("a", script, TWO_NODES, env={"ODD": "a'b\n$(c)"})
        place.outlet.submit([bundle])
        return bundle.key

    return submitted


def test_one_process_on_each_node(place: PbsPlace, submit: Callable[[str], Key]) -> None:
    key = submit(
        'echo "$DISPATCHER_PROCESS_ID of $DISPATCHER_NUM_PROCESSES at $DISPATCHER_COORDINATOR on $PBS_NODENUM: $ODD"'
    )
    assert place.end(key).exit_code == 0
    directory = place.paths(key).directory
    assert printed(place.paths(key).log) == "0 of 2 at node1:61441 on 0: a'b\n$(c)\n"
    assert place.paths(key).log.read_text().startswith("dispatcher: note: job 1.pbs of PBS, on ")
    assert (directory / "output.1.log").read_text() == "1 of 2 at node1:61441 on 1: a'b\n$(c)\n"
    assert not list(directory.glob("node*.*[!h]")), "nothing is left behind"
    (words,) = place.bed.calls("qsub")
    assert "select=2:ncpus=4:ngpus=4" in words
    assert "place=scatter" in words


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("other", ["sleep 600", "trap '' TERM; while :; do sleep 0.1; done"])
def test_one_that_fails_ends_the_others(
    place: PbsPlace, submit: Callable[[str], Key], failing: int, other: str
) -> None:
    key = submit(
        f"if ((DISPATCHER_PROCESS_ID == {failing})); then until [ -e there ]; do sleep 0.02; done;"
        f" echo 'Error: no luck'; exit 7; fi; touch there; {other}"
    )
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (7, "")
    log = place.paths(key).log.read_text()
    assert f"dispatcher: error: node{failing + 1}: exit status 7" in log
    assert last_error_line(until_first_end(log.splitlines())) == "Error: no luck"
    wait_until(lambda: place.is_gone(key), "nothing of it is left on any node")


def test_cancelled_on_all_nodes(place: PbsPlace, submit: Callable[[str], Key]) -> None:
    key = submit(
        "trap 'echo saved >saved.$DISPATCHER_PROCESS_ID; exit 75' TERM;"
        " touch begun.$DISPATCHER_PROCESS_ID; sleep 600 & wait"
    )
    wait_until(lambda: place.outlet.poll([key]) and len(list(place.root.glob("begun.*"))) == 2, "both have begun")
    place.outlet.cancel([key])
    assert place.end(key).exit_code == 75
    assert len(list(place.root.glob("saved.*"))) == 2
    assert "error" not in place.paths(key).log.read_text()
    assert not list(place.paths(key).directory.glob("nodes.[!s]*")), "nothing is left behind"


def test_a_node_that_is_not_reached(place: PbsPlace, submit: Callable[[str], Key]) -> None:
    with place.holding():
        key = submit("sleep 600")
        wait_until(lambda: place.outlet.poll([key])[key].placement, "it was submitted")
        (place.bed.bin / "pbs_tmrsh").write_text(
            '#!/bin/sh\n[ "$1" = node2 ] && { echo "pbs_tmrsh: tm_poll(spawn): host \\"node2\\" err TM_ESYSTEM 17002"'
            f" >&2; exit 255; }}\n{(place.bed.bin / 'pbs_tmrsh').read_text().splitlines()[1]}\n"
        )
    ended = place.end(key)
    assert ended.exit_code == 255
    assert 'host "node2" err TM_ESYSTEM' in place.paths(key).log.read_text()
