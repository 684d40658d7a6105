"""What an answer costs: at 100,000 jobs about a second of the processor, and no more than a megabyte.

The reference is the reading of the manifest as JSON: 0.27 s where these tests were written, and at 1,200 jobs 0.6 ms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import huge_matrix
import large_matrix
import psutil
import pytest
from cli.conftest import Lab
from web_requests import Web

from dispatcher.web.answers import MOST_BYTES
from dispatcher.workspace import Layout

COUNT = 100_000
JOB = huge_matrix.entries(1)[0]["job_id"]
PATHS = (
    "overview",
    "overview?where=lang=greek",
    "overview?state=failed",
    "changes?since=other.1",
    "changes?since={position}",
    "matrix?rows=lang&columns=method&value=test_bpc",
    "matrix?rows=seed&columns=lang,method,lr",
    "matrix?rows=job_id&columns=state",
    "jobs?limit=500",
    "jobs?limit=500&sort=-seed&after=50000",
    "jobs?limit=500&sort=-finished_at&state=done",
    "jobs?limit=500&sort=test_bpc&where=lang=greek",
    "jobs?limit=500&where=job_id=*greek*&where=reason=exit*",
    "jobs?failure={failure}",
    "jobs?waiting={waiting}&limit=500",
    f"jobs/{JOB}",
    "scatter?x=lr&y=test_bpc",
    "compare?where=lang=greek&by=method&metric=loss",
    "compare?by=lr,lang&metric=loss",
    "parameters?y=test_bpc",
    "values?key=lang",
    "values?text=gree",
    "values?key=job_id&text=gree",
    "pods",
)


def processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def reading_s(web: Web) -> float:
    """What this machine takes to read the manifest as JSON: of the processor, at best."""
    text, taken = Layout(web.root).default_matrix.read_bytes(), []
    for _ in range(3):
        before_s = time.process_time()
        json.loads(text)
        taken.append(time.process_time() - before_s)
    return min(taken)


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    root = tmp_path_factory.mktemp("huge") / "lab"
    huge_matrix.make(root, COUNT)
    web = Web(root)
    try:
        web.log_in()
        web.first = web.send("GET", "/api/overview", {"Cookie": web.cookie})
        web.wait_for("/api/overview", lambda found: found["keys"], "the values of the jobs")
        yield web
    finally:
        web.end()


@pytest.mark.slow
def test_while_the_workspace_is_read_an_answer_says_so_at_once(huge):
    answer = huge.first
    assert answer.status == 503 and answer.json["loading"] and answer.headers["retry-after"] == "1"
    assert "is being read" in answer.error


@pytest.mark.slow
def test_no_answer_costs_or_has_too_much(huge):
    process, found = psutil.Process(huge.process.pid), []
    seen = huge.get("/api/overview").json
    assert seen["total"] == COUNT and len(seen["running"]) == huge_matrix.RUNNING
    words = {"failure": seen["failures"][0]["key"], "waiting": seen["waiting"][0]["key"], "position": seen["position"]}
    for path in PATHS:
        costs = []
        # The reading of results, which goes on meanwhile, is not the answer's.
        for _ in range(2):
            before_s = processor_s(process)
            answer = huge.get(f"/api/{path.format(**words)}")
            costs.append(processor_s(process) - before_s)
        assert answer.status in (200, 400), (path, answer.body[:300])
        assert len(answer.body) <= MOST_BYTES, path
        found.append((min(costs), path))
    assert max(found)[0] < 4 * reading_s(huge), sorted(found)[-5:]


@pytest.mark.slow
def test_nothing_is_done_for_a_viewer_when_nothing_has_changed(huge):
    seen = huge.wait_for("/api/overview", lambda one: not one["results"]["pending"] and "week" in one, "the rest")
    process = psutil.Process(huge.process.pid)
    position = seen["position"]
    before_s, began_s = processor_s(process), time.monotonic()
    for _ in range(100):
        answer = huge.get(f"/api/changes?since={position}")
        position = answer.json["position"]
        assert len(answer.body) < 250_000
    each_s = (processor_s(process) - before_s) / 100
    # A look is made every two seconds meanwhile, which reads the progress of 200 jobs.
    looks = 1 + (time.monotonic() - began_s) / 2
    assert each_s < (0.02 + looks * 0.01) * reading_s(huge)


def test_at_1200_jobs_the_first_screen_costs_milliseconds(tmp_path, serve):
    root = tmp_path / "large"
    (root / "templates").mkdir(parents=True)
    large_matrix.fill(Lab(root, None))
    web = serve(root=root)
    process = psutil.Process(web.process.pid)
    web.wait_for("/api/overview", lambda found: not found["results"]["pending"], "the results")
    before_s = processor_s(process)
    for _ in range(20):
        assert len(web.get("/api/overview").body) < 100_000
        assert json.loads(web.get("/api/matrix?rows=lang&columns=method&value=test_bpc").body)["jobs"] == 1200
    assert (processor_s(process) - before_s) / 40 < 80 * reading_s(web)
