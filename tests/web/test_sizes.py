"""No answer has more than a megabyte, whatever jobs and people write; lists of jobs go on in the next answer."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest
from crowded import write_pod

from dispatcher.run_state.gpu_hour import MINUTES, GpuHour, GpuUser, PodGpus, write_gpus
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.web.answers import MOST_BYTES, fitted

RUNNING = 220
DONE = 80
# As long as a file's name may be here, beside what is appended to it.
ID = "j" * 190
LONG = '\x01"é' * 300


def hostile(lab):
    """Jobs whose ids, parameters, errors, metrics and results are all as long as they can be."""
    params = {f"p{n}_{'k' * 280}": LONG for n in range(20)}
    jobs = [f"{ID}{n}" for n in range(RUNNING + 2 * DONE)]
    lab.write_manifest([{"job_id": job, "method": "m", "text": f"{n}{LONG}", **params} for n, job in enumerate(jobs)])
    now_s = time.time()
    metrics = {f"m{n}_{'x' * 300}": n for n in range(100)}
    for number, job in enumerate(jobs):
        times = {"started_at": now_text(now_s - 900)}
        if number < RUNNING:
            lab.put(job, "running", outlet="local", gpu=0, host="h" * 200, **times)
            lab.attempt(job, progress=json.dumps({"step": 1, "of": 9, "metrics": metrics}))
            continue
        ended = {**times, "finished_at": now_text(now_s - 60)}
        if number < RUNNING + DONE:
            lab.put(job, "failed", reason=f"exit {number}", error=f"Error{number}: {LONG}", **ended)
            lab.attempt(job, exit='{"exit_code": 1}', log="\x02" * 200_000 + "\n")
        else:
            lab.put(job, "done", **ended)
            lab.attempt(job, result=json.dumps({**metrics, "loss": number}))
    lab.attempt(jobs[0], metrics="".join(json.dumps({"step": n / 7, **metrics, "y": n / 3}) + "\n" for n in range(400)))
    gpus = {
        f"gpu{n}": GpuHour([100] * MINUTES, [81_559] * MINUTES, [GpuUser(1, "u" * 200, "p" * 200, 1)] * 8)
        for n in range(64)
    }
    for pod in range(20):
        slots = [
            SlotInfo(name=f"gpu{n}", outlet="local", gpu_name="G" * 200, note=LONG, memory_total_mib=9)
            for n in range(64)
        ]
        write_pod(lab, f"pod{pod}", "running", slots)
        write_gpus(lab.layout, f"pod{pod}", PodGpus(int(now_s // 60), gpus))
    return jobs


@pytest.mark.slow
def test_no_answer_has_more_than_a_megabyte_whatever_is_shown(serve, lab):
    jobs = hostile(lab)
    web = serve()
    seen = web.wait_for("/api/overview", lambda found: not found["results"]["pending"] and found["keys"], "the rest")
    first = jobs[0]
    paths = [
        "overview", "overview?state=running", "changes?since=other.1", "pods", f"jobs/{first}", f"jobs/{jobs[RUNNING]}",
        f"jobs/{jobs[-1]}", "jobs?limit=500", "jobs?limit=500&state=failed", f"jobs?ids={quote(','.join(jobs[:9]))}",
        "matrix?rows=job_id&columns=state", "matrix?rows=job_id&columns=text&value=loss", "matrix?rows=text",
        "scatter?x=text&y=loss", f"jobs/{first}/metrics?width=4000", "compare?metric=y&by=text&width=4000",
        f"jobs/{jobs[RUNNING]}/log?bytes=131072",
    ]  # fmt: skip
    for path in paths:
        answer = web.get(f"/api/{path}")
        assert answer.status == 200, (path, answer.body[:300])
        assert len(answer.body) <= MOST_BYTES, (path, len(answer.body))
    # Ids are never shortened: requests are made of them.
    assert {row["job"] for row in seen["running"]} <= set(jobs)
    # What does not fit into one answer comes with the next.
    lists = (
        ("jobs?limit=500&after=", "jobs", "total"),
        ("matrix?rows=job_id&columns=state&from=", "rows", "total_rows"),
    )
    for path, name, total in lists:
        found, after, answers = [], 0, 0
        while after is not None:
            answer = web.get(f"/api/{path}{after}").json
            found += [json.dumps(one) for one in answer[name]]
            after, answers = answer["next"], answers + 1
        assert len(found) == len(set(found)) == answer[total] >= len(jobs)
        assert answers > 1 or name == "rows"


def test_what_is_too_long_is_shortened_as_little_as_it_must_be():
    rows = [
        {
            "job": "j" * 200,
            "error": "e" * 5_000,
            "params": dict.fromkeys(map(str, range(30)), "v"),
            "x": list(range(40)),
        }
    ]
    whole, cut = fitted({"jobs": rows})["jobs"], json.loads(fitted({"jobs": rows}, 1_500)["jobs"])[0]
    assert json.loads(whole) == rows
    assert cut["job"] == rows[0]["job"] and cut["x"] == rows[0]["x"]
    assert cut["error"].endswith("…") and 200 < len(cut["error"]) <= 300 and len(cut["params"]) == 30
