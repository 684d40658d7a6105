"""What the page's server answers: what changed, in time, of a copy, and never as new what is old."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from urllib.parse import quote

import pytest

from dispatcher.base.times import parse_time
from dispatcher.run_state.store import Store

LORA = [f"lora_hindi_s{n}" for n in range(5)]


def since(web, position, query=""):
    return f"/api/changes?since={position}{query}"


def at_rest(web):
    """The first screen, after everything was read that is read little by little."""
    seen = web.wait_for("/api/overview", lambda found: not found["results"]["pending"] and "week" in found, "the rest")
    # What came with it.
    return web.wait_for("/api/overview", lambda found: found["keys"], "the keys") if not seen["keys"] else seen


def test_the_first_screen_says_what_status_says(serve, lab):
    web = serve()
    seen = at_rest(web)
    status = lab.run("status", "--json").json
    assert seen["counts"] == status["counts"] and seen["total"] == status["total"]
    assert {row["job"] for row in seen["running"]} == {
        row["job"] for row in status["jobs"] if row["state"] == "running"
    }
    assert seen["running"][0]["stalled_since"]
    assert [one["count"] for one in seen["failures"]] == [len(one["jobs"]) for one in status["failures"]]
    assert [one["reason"] for one in seen["failures"]] == [one["reason"] for one in status["failures"]]
    assert [(one["reason"], one["count"]) for one in seen["waiting"]] == [
        (one["why"], len(one["jobs"])) for one in status["waiting"]
    ]
    kinds = [one["kind"] for one in seen["attention"]]
    assert kinds[0] == "paused" and "stalled" in kinds
    week = seen["week"]
    assert week["total"]["total"]["slots"] > 0 and len(week["days"]) == 7
    for parts in (week["days"], week["rows"]):
        slots = sum(one["hours"].get("total", {"slots": 0})["slots"] for one in parts)
        assert slots == pytest.approx(week["total"]["total"]["slots"])
    assert {one["key"] for one in seen["keys"]} >= {"method", "seed"}


def test_a_job_that_is_older_than_what_it_needs_is_told_in_every_view(serve, lab):
    manifest = lab.layout.matrix_dir / "matrix.json"
    added = [{"job_id": "up", "method": "fft"}, {"job_id": "down", "method": "fft", "needs": ["up"]}]
    manifest.write_text(json.dumps([*json.loads(manifest.read_text()), *added]))
    lab.put("up", "done")
    lab.put("down", "running", inputs_at=lab.workspace.store.seq, ran_with="0" * 16)
    lab.put("down", "done")
    web = serve()
    seen = at_rest(web)
    assert not any("done again" in text for text in seen["notices"])
    assert web.get("/api/jobs/down").json["row"]["newer_inputs"] is None
    lab.workspace.requeue("up")
    lab.put("up", "done")
    news = web.wait_for(since(web, seen["position"]), lambda found: "down" in found.get("jobs", ()), "the news")
    assert "1 job began before what it needs was done again: down" in news["notices"]
    assert web.get("/api/jobs/down").json["row"]["newer_inputs"] == {"up": 2}
    rows = {row["job"]: row["newer_inputs"] for row in web.get("/api/jobs?limit=500").json["jobs"]}
    assert {job: newer for job, newer in rows.items() if newer} == {"down": {"up": 2}}


def test_the_jobs_of_a_cause_and_of_a_reason_are_found_by_its_key(serve):
    web = serve()
    seen = web.get("/api/overview").json
    for part, name in (("failures", "failure"), ("waiting", "waiting")):
        for one in seen[part]:
            found = web.get(f"/api/jobs?{name}={one['key']}&limit=500").json
            assert found["total"] == one["count"]
            assert set(one["jobs"]) <= {row["job"] for row in found["jobs"]}
    assert web.get("/api/jobs?failure=gone").json["total"] == 0


def test_only_what_has_changed_is_told(serve, lab):
    web = serve()
    position = at_rest(web)["position"]
    answer = web.get(since(web, position)).json
    assert answer["unchanged"] is True and answer.keys() <= {
        "at",
        "data_at",
        "read_at",
        "live",
        "position",
        "unchanged",
    }
    lab.workspace.hold("lora_hindi_s3")
    changed = web.wait_for(since(web, position), lambda found: "unchanged" not in found, "the change")
    assert changed["jobs"] == ["lora_hindi_s3"] and not changed["jobs_more"]
    assert changed["counts"]["held"] == 2
    # What does not depend on it stays away.
    assert not changed.keys() & {"failures", "workspace", "keys", "metrics", "total", "week"}
    # The job's result is looked for a moment later.
    then = web.get(since(web, at_rest(web)["position"])).json
    assert then.get("unchanged") is True, then
    row = web.get("/api/jobs?ids=lora_hindi_s3").json["jobs"][0]
    assert row["state"] == "held"


def test_a_change_beyond_the_filter_does_not_show_what_is_beyond_it(serve, lab):
    web = serve()
    at_rest(web)
    seen = web.get("/api/overview?where=method=fft").json
    lab.workspace.hold("lora_hindi_s3")
    path = since(web, seen["position"], "&where=method=fft")
    changed = web.wait_for(path, lambda found: found.get("jobs"), "the change")
    now = web.get("/api/overview?where=method=fft").json
    shown = {**seen, **changed}
    for part in ("counts", "total", "running_total", "failures", "waiting"):
        assert shown[part] == now[part] == seen[part], part
    assert {row["method"] for row in shown["running"]} == {"fft"}
    lab.workspace.requeue("fft_greek_s9")
    path = since(web, changed["position"], "&where=method=fft")
    changed = web.wait_for(path, lambda found: found.get("jobs"), "the change of a job of the filter")
    assert changed["counts"]["failed"] == seen["counts"]["failed"] - 1


def test_a_position_of_another_start_gets_everything(serve):
    web = serve()
    for position in ("", "x", "deadbeef.1", f"{at_rest(web)['position']}9", "-1"):
        answer = web.get(since(web, position)).json
        assert answer["reset"] is True and answer["counts"] and answer["workspace"]


def test_filters_are_those_of_the_command_line(serve, lab):
    web = serve()
    everything = lab.run("status", "--json").json["jobs"]
    for query, options in (
        ("where=method=fft&where=seed=1*", ["--where", "method=fft", "--where", "seed=1*"]),
        ("state=failed,held", ["--state", "failed,held"]),
        ("methods=lora,eval&state=queued", ["--where", "method=lora,eval", "--state", "queued"]),
        ("where=reason=exit*", ["--where", "reason=exit*"]),
        ("where=seed!=3", ["--where", "seed!=3"]),
        ("where=note=größer 语言", ["--where", "note=größer 语言"]),
    ):
        expected = lab.run("status", "--json", *options).json
        asked = quote(query, safe="=&*!,")
        found = web.get(f"/api/jobs?limit=500&{asked}").json
        assert [row["job"] for row in found["jobs"]] == [row["job"] for row in expected["jobs"]]
        assert 0 < found["total"] < len(everything)
        seen = web.get(f"/api/overview?{asked}").json
        assert seen["counts"] == expected["counts"]


SENSELESS = (
    ("/api/jobs?where==nonsense", "expected key=value"),
    ("/api/jobs?where=colour=red", "'colour'"),
    ("/api/jobs?state=quued", "queued"),
    ("/api/jobs?limit=501", "1 to 500"),
    ("/api/jobs?limit=-1", "1 to 500"),
    ("/api/jobs?lmit=1", "limit"),
    ("/api/jobs?sort=colour", "colour"),
    ("/api/matrix?rows=colour", "colour"),
    ("/api/matrix?rows=seed&value=bpc", "bpc"),
    ("/api/scatter?x=seed", "y=RESULT"),
    ("/api/compare?jobs=nobody&metric=loss", "nobody"),
    ("/api/jobs?" + "&".join(["where=seed=1"] * 21), "at most 20"),
    ("/api/jobs?where=seed=" + "1" * 3000, "at most 2000"),
    ("/api/jobs/fft_greek_s1/log?attempt=99", "no attempt 99"),
)


def test_a_request_that_makes_no_sense_says_what_is_wrong(serve):
    web = serve()
    at_rest(web)
    for path, word in SENSELESS:
        answer = web.get(path)
        assert answer.status == 400 and word in answer.error, (path[:80], answer.body)


def test_lists_come_in_portions_and_in_any_order(serve):
    web = serve()
    found, after = [], 0
    while after is not None:
        answer = web.get(f"/api/jobs?sort=-seed&limit=7&after={after}").json
        found += answer["jobs"]
        after = answer["next"]
    assert len(found) == len({row["job"] for row in found}) == answer["total"]
    seeds = [row["params"].get("seed") for row in found]
    known = [seed for seed in seeds if seed is not None]
    assert known == sorted(known, reverse=True) and seeds[: len(known)] == known


def test_a_job_has_all_that_show_has(serve, lab):
    web = serve()
    found = web.get("/api/jobs/fft_greek_s9").json
    shown = lab.run("show", "--json", "fft_greek_s9").json
    assert found["record"] == shown["record"] and found["error"] == shown["record"]["error"]
    assert [one["exit_code"] for one in found["attempts"]] == [one["exit_code"] for one in shown["attempts"]]
    assert found["params"]["seed"] == 9
    needs = web.get("/api/jobs/report").json["needs"]
    assert needs and needs[0]["state"] == "queued"
    answer = web.get("/api/jobs/fft_greek_s99")
    assert answer.status == 404 and "fft_greek_s9" in answer.error


def test_a_log_is_read_from_its_end_and_followed_by_bytes(serve, lab):
    text = "step 1\rstep 2\r语言\n" * 5000
    path = lab.attempt("fft_greek_s1", log=text) / "output.log"
    data = text.encode()
    web = serve()
    end = web.get("/api/jobs/fft_greek_s1/log?bytes=1000").json
    assert end["bytes"] == end["to"] == len(data) and 996 <= end["to"] - end["from"] <= 1000
    assert end["text"].encode() == data[end["from"] :] and "\r" in end["text"]
    before = web.get(f"/api/jobs/fft_greek_s1/log?bytes=1000&before={end['from']}").json
    assert (before["text"] + end["text"]).encode() == data[before["from"] :]
    with open(path, "ab") as file:
        file.write("größer".encode()[:-2] + b"\xc3")
    more = web.get(f"/api/jobs/fft_greek_s1/log?from={end['to']}").json
    assert more["from"] == end["to"]
    download = web.get("/api/jobs/fft_greek_s1/log/download")
    assert download.headers["content-disposition"] == 'attachment; filename="fft_greek_s1.1.log"'
    path.write_text("anew")
    assert web.get(f"/api/jobs/fft_greek_s1/log?from={end['to']}").json["text"] == "anew"
    assert web.get("/api/jobs/fft_greek_s3/log").json["bytes"] is None


def test_a_spike_of_one_step_stays_and_nan_is_told(serve, lab):
    path = lab.attempt("fft_greek_s1") / "metrics.jsonl"
    rows = [{"step": n, "wall_s": n, "loss": 1.0} for n in range(20_000)]
    rows[777]["loss"], rows[900]["loss"], rows[901]["loss"] = 99.0, "NaN", "Infinity"
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + f'no json\n{{"step": {10**400}}}\n{{"step": 20000, "lo'
    )
    web = serve()
    found = web.wait_for("/api/jobs/fft_greek_s1/metrics?width=100", lambda got: got["read"] == got["bytes"], "all")
    loss = found["series"]["loss"]
    assert found["names"] == ["loss"] and len(loss["x"]) <= 100
    assert max(loss["max"]) == 99.0 and sum(value == 99.0 for value in loss["max"]) == 1 and set(loss["min"]) == {1.0}
    assert loss["nan"] == [900, 901] and loss["count"] == 20_000
    with open(path, "a") as file:
        file.write('ss": 5.0}\n')
    again = web.get("/api/jobs/fft_greek_s1/metrics?width=100").json
    assert again["series"]["loss"]["last"] == {"x": 20000, "y": 5.0}
    path.write_text('{"step": 1, "acc": 0.5}\n')
    assert web.get("/api/jobs/fft_greek_s1/metrics").json["names"] == ["acc"]


def test_the_page_shows_what_the_command_line_counts(serve, lab):
    """A script that goes on in its second attempt without a copy, and was rewound there."""
    job = "fft_greek_s1"
    lab.put(job, "queued")
    lab.put(job, "running")
    steps = {1: range(60), 2: [*range(50, 80), *range(70, 100)]}
    for number, of_attempt in steps.items():
        lines = [json.dumps({"step": step, "loss": number * step}) + "\n" for step in of_attempt]
        (lab.attempt(job, number) / "metrics.jsonl").write_text("".join(lines))
    (counted,) = lab.workspace.metrics(job)
    web = serve()
    found = web.get(f"/api/jobs/{job}/metrics?width=1000").json
    loss = found["series"]["loss"]
    assert loss["x"] == counted.steps.tolist() == list(range(100))
    assert loss["min"] == counted.values.tolist() == [float(step if step < 50 else 2 * step) for step in range(100)]
    assert found["left_out"] == lab.workspace.metrics(job).faults() != []
    (group,) = web.get(f"/api/compare?jobs={job}&metric=loss&width=1000").json["groups"]
    assert group["mean"] == loss["min"]
    first = web.get(f"/api/jobs/{job}/metrics?width=1000&attempt=1").json["series"]["loss"]
    assert first["min"] == list(range(60))


def test_a_file_of_one_attempt_that_cannot_be_read_takes_no_other_values_away(serve, lab):
    job = "fft_greek_s1"
    lab.put(job, "queued")
    lab.put(job, "running")
    (lab.attempt(job, 2) / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "loss": 1}}\n' for step in (50, 51)))
    path = lab.attempt(job, 1) / "metrics.jsonl"
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    web = serve()
    found = web.get(f"/api/jobs/{job}/metrics?width=1000").json
    assert found["series"]["loss"]["x"] == [50, 51]
    assert found["left_out"][0] == f"{path}: is a link, or below one: it is not shown"
    told = web.get(f"/api/compare?jobs={job}&metric=loss&width=1000").json
    assert [group["mean"] for group in told["groups"]] == [found["series"]["loss"]["min"]]
    assert told["cut"] == f"1 job with a file of an attempt that cannot be read: {job}"


def test_lines_of_metrics_count_that_a_script_of_ones_own_has_written(serve, lab):
    path = lab.attempt("fft_greek_s1") / "metrics.jsonl"
    values = (1.0, math.nan, math.inf, None, 5.0)
    lines = [json.dumps({"step": step, "loss": loss, "acc": step / 10}) for step, loss in enumerate(values)]
    path.write_text("\n".join([*lines, '{"step": "NaN", "loss": 7.0}', '{"step": "6", "loss": 7.0}', ""]))
    series = serve().get("/api/jobs/fft_greek_s1/metrics").json["series"]
    assert (series["loss"]["x"], series["loss"]["max"], series["loss"]["nan"]) == ([0, 4], [1.0, 5.0], [1, 2, 3])
    assert series["acc"]["max"] == [0.0, 0.1, 0.2, 0.3, 0.4]


def test_a_table_that_a_method_names_is_read_as_it_grows_and_anew_under_another_heading(serve, lab):
    directory = lab.attempt("fft_greek_s1")
    (directory / "script-outputs.json").write_text('{"metrics": {"path": "out/log.csv", "step": "epoch"}}')
    (directory / "out").mkdir()
    path = directory / "out" / "log.csv"
    path.write_text("epoch,loss\n1,5\n2,4\n3,")
    web = serve()

    def series():
        found = web.get("/api/jobs/fft_greek_s1/metrics").json["series"]
        return {name: (one["x"], one["max"]) for name, one in found.items()}

    assert series() == {"loss": ([1, 2], [5, 4])}
    with open(path, "a") as file:
        file.write("3\n")
    assert series() == {"loss": ([1, 2, 3], [5, 4, 3])}
    # As a logger does that meets a further metric: in place, and longer.
    path.write_text("epoch,acc,loss\n1,,5\n2,,4\n3,0.5,3\n")
    assert series() == {"loss": ([1, 2, 3], [5, 4, 3]), "acc": ([3], [0.5])}
    path.unlink()
    (directory / "out").rmdir()
    (directory / "out").symlink_to("/")
    assert web.send("GET", "/api/jobs/fft_greek_s1/metrics", {"Cookie": web.cookie}).status != 200


def test_all_nans_are_counted_though_fewer_are_drawn(serve, lab):
    path = lab.attempt("fft_greek_s1") / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "loss": "NaN"}) + "\n" for step in range(1000)))
    loss = serve().get("/api/jobs/fft_greek_s1/metrics?width=100").json["series"]["loss"]
    assert loss["nan_count"] == 1000 and len(loss["nan"]) <= 100


def test_a_result_that_is_nan_is_missing_as_in_the_table_of_results(serve, lab):
    for job, bpc in (("fft_greek_s19", math.nan), ("fft_greek_s21", 1.0), ("fft_greek_s23", 2.0)):
        lab.attempt(job, result=json.dumps({"bpc": bpc, "size": 3}), exit='{"exit_code": 0}')
    web = serve()
    at_rest(web)
    for value in ("bpc", "size"):
        row = lab.run("results", "--by", "method", "--where", "state=done", "--value", value, "--json").json[0]
        ((cell,),) = web.get(f"/api/matrix?rows=method&state=done&value={value}").json["cells"]
        found = cell["mean"], cell["std"], cell["n"], cell["of"]
        assert found == tuple(row[f"{value} {one}"] for one in ("mean", "std", "n", "of"))
    assert web.get("/api/jobs/fft_greek_s19").json["result"]["values"] == {"bpc": None, "size": 3}
    ordered = web.get("/api/jobs?sort=-bpc&limit=2").json["jobs"]
    assert [row["job"] for row in ordered] == ["fft_greek_s23", "fft_greek_s21"]


def test_jobs_of_methods_that_never_report_a_value_count_in_no_cell(serve, lab):
    """As in the table of results; what has only reported a NaN, or nothing at all, may lack the value."""
    results = {"fft_greek_s19": {"loss": 1.0}, "fft_greek_s21": {"loss": math.nan}, "lora_s0": {"acc": 1}}
    entries = json.loads(lab.layout.default_matrix.read_text())
    lab.write_manifest([*entries, {"job_id": "lora_s0", "method": "lora"}, {"job_id": "new_s0", "method": "new"}])
    lab.put("lora_s0", "done")
    for job, result in results.items():
        lab.attempt(job, result=json.dumps(result), exit='{"exit_code": 0}')
    web = serve()
    at_rest(web)
    for value in ("loss", "acc"):
        rows = lab.run("results", "--by", "method", "--value", value, "--json").json
        found = web.get(f"/api/matrix?rows=method&value={value}").json
        cells = {row["values"][0]: cell for row, (cell,) in zip(found["rows"], found["cells"], strict=True)}
        assert {row["method"]: row[f"{value} of"] for row in rows} == {name: cell["of"] for name, cell in cells.items()}
        assert (cells["lora"]["of"] == 0) == (value == "loss")


def test_a_pipe_where_a_job_should_have_a_file_holds_nothing_up(serve, lab):
    for job in ("fft_greek_s19", "fft_greek_s21"):
        lab.attempt(job, result='{"bpc": 1.5}', exit='{"exit_code": 0}')
    for name in ("result.json", "entry.json"):
        (lab.attempt("fft_greek_s21") / name).unlink(missing_ok=True)
        os.mkfifo(lab.attempt("fft_greek_s21") / name)
    assert [row["bpc"] for row in lab.run("results", "--json").json if row.get("bpc")] == [1.5]
    web = serve()
    web.wait_for("/api/overview", lambda found: found["results"] == {"known": 2, "pending": 0}, "all results")
    assert web.get("/api/jobs/fft_greek_s21").status == 200


def test_curves_of_seeds_have_a_mean_and_a_spread(serve, lab):
    for number, job in enumerate(("fft_greek_s1", "fft_greek_s3", "fft_greek_s5")):
        lines = [{"step": step, "loss": step + number} for step in range(0, 50 if number else 40, 10)]
        (lab.attempt(job) / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    web = serve()
    path = "/api/compare?jobs=fft_greek_s1,fft_greek_s3,fft_greek_s5,fft_greek_s7&metric=loss&by=method"
    found = web.get(path).json
    (group,) = found["groups"]
    assert group["label"] == "method=fft" and group["x"] == [0, 10, 20, 30, 40] and group["counts"] == [3, 3, 3, 3, 2]
    assert group["mean"] == [1, 11, 21, 31, 41.5]
    assert group["low"][0] == 0 and group["high"][0] == 2
    assert found["without"] == 1 and found["pending"] == 0


def test_a_job_whose_metrics_are_no_file_does_not_hide_those_of_the_others(serve, lab):
    (lab.attempt("fft_greek_s1") / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')
    os.mkfifo(lab.attempt("fft_greek_s3") / "metrics.jsonl")
    (lab.attempt("fft_greek_s5") / "metrics.jsonl").symlink_to("/dev/zero")
    jobs = "fft_greek_s1,fft_greek_s3,fft_greek_s5"
    found = serve().get(f"/api/compare?jobs={jobs}&metric=loss&by=method").json
    assert [group["mean"] for group in found["groups"]] == [[2]]
    text = "2 jobs whose metrics are in no plain file or cannot be read: fft_greek_s3, fft_greek_s5"
    assert found["cut"] == text


def test_jobs_that_log_at_other_steps_are_in_one_mean(serve, lab):
    for job, first, value in (("fft_greek_s1", 0, 1.0), ("fft_greek_s3", 5, 3.0)):
        lines = [{"step": step, "loss": value} for step in range(first, first + 31, 10)]
        lines[2]["loss"] = value if first else "NaN"
        (lab.attempt(job) / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = "/api/compare?jobs=fft_greek_s1,fft_greek_s3&metric=loss&by=method"
    web = serve()
    (group,) = web.get(path).json["groups"]
    # The first job has a NaN at 20, and ends at 30; the second one begins at 5.
    assert group["x"] == [0, 5, 10, 15, 25, 30, 35]
    assert group["mean"] == [1, 2, 2, 3, 3, 2, 3] and group["counts"] == [1, 2, 2, 1, 1, 2, 1]
    for job, first in (("fft_greek_s1", 0), ("fft_greek_s3", 50)):
        lines = [{"step": step, "loss": first} for step in range(first, first + 3000, 100)]
        (lab.attempt(job) / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (group,) = web.get(f"{path}&width=20").json["groups"]
    assert len(group["x"]) == 20 and set(group["mean"][1:-1]) == {25.0}


def test_values_that_look_alike_are_groups_of_their_own(serve, lab):
    flags = {"fft_greek_s1": False, "fft_greek_s3": 0, "fft_greek_s5": 0.0, "fft_greek_s7": "0"}
    entries = json.loads(lab.layout.default_matrix.read_text())
    lab.write_manifest([{**one, "flag": flags[one["job_id"]]} if one["job_id"] in flags else one for one in entries])
    for number, job in enumerate(flags):
        (lab.attempt(job) / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": number}) + "\n")
    web = serve()
    groups = web.get(f"/api/compare?jobs={','.join(flags)}&metric=loss&by=flag").json["groups"]
    named = ["0", "0.0", '"0"', "false"]
    assert [(one["label"], one["n"]) for one in groups] == [(f"flag={name}", 1) for name in named]
    assert [row["values"][0] for row in web.get("/api/matrix?rows=flag").json["rows"]] == [*named, None]


def test_a_matrix_has_means_of_results_and_counts_of_states(serve, lab):
    for number, job in enumerate(f"fft_greek_s{n}" for n in (19, 21, 23)):
        lab.attempt(job, result=json.dumps({"bpc": 1.0 + number, "note": "x"}), exit='{"exit_code": 0}')
    web = serve()
    seen = at_rest(web)
    assert seen["metrics"] == ["bpc"]
    found = web.get("/api/matrix?rows=method&columns=state&value=bpc").json
    cell = found["cells"][[row["values"] for row in found["rows"]].index(["fft"])]
    done = cell[[column["values"] for column in found["columns"]].index(["done"])]
    assert (done["n"], done["of"], done["mean"], done["std"]) == (3, 7, 2.0, 1.0)
    assert sum(one["of"] for row in found["cells"] for one in row if one) == seen["total"]
    for row, cells in zip(found["rows"], found["cells"], strict=True):
        for column, one in zip(found["columns"], cells, strict=True):
            where = "&".join(f"where={condition}" for condition in (*row["where"], *column["where"]))
            assert web.get(f"/api/jobs?{where}").json["total"] == (one["of"] if one else 0), where
    points = web.get("/api/scatter?x=seed&y=bpc").json
    assert [(point["x"], point["y"]) for point in points["points"]] == [(19, 1.0), (21, 2.0), (23, 3.0)]
    assert points["missing_total"] == seen["total"] - 3


def test_a_copy_is_as_old_as_it_is_and_nothing_is_written_into_it(serve, lab, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(lab.root, copy, copy_function=shutil.copy)
    for path in (copy, *copy.rglob("*")):
        os.utime(path)
    before = {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns) for path in (copy, *copy.rglob("*"))}
    last_s = max(time.time() - 1, 0)
    web = serve(root=copy)
    seen = at_rest(web)
    paths = (
        "/api/pods",
        "/api/jobs",
        "/api/jobs/fft_greek_s9",
        "/api/matrix?rows=method",
        "/api/jobs/fft_greek_s9/log",
    )
    for path in paths:
        assert web.get(path).status == 200
    assert seen["live"] is False
    assert parse_time(seen["data_at"]) <= last_s + 1
    assert parse_time(seen["data_at"]) <= parse_time(seen["read_at"])
    after = {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns) for path in (copy, *copy.rglob("*"))}
    assert after == before


def test_a_workspace_that_goes_away_is_not_shown_as_it_was(serve, lab, tmp_path):
    web = serve()
    position = at_rest(web)["position"]
    away = tmp_path / "away"
    lab.root.rename(away)
    end_s = time.monotonic() + 30
    while (answer := web.get(since(web, position))).status == 200:
        assert time.monotonic() < end_s, "still shown"
        time.sleep(0.2)
    assert answer.status == 503 and "data_at" in answer.json and answer.error
    for path in ("/api/overview", "/api/jobs", "/api/pods", "/api/jobs/fft_greek_s1"):
        assert web.get(path).status == 503
    away.rename(lab.root)
    lab.workspace.hold("lora_hindi_s2")
    web.wait_for("/api/overview", lambda found: found["counts"]["held"] == 2, "the workspace is back")


def test_a_journal_that_begins_anew_and_hand_edits_are_followed(serve, lab):
    web = serve()
    at_rest(web)
    store = Store(lab.layout, by="rotation")
    with store.transaction():
        pass
    assert store.rotate()
    lab.workspace.hold("lora_hindi_s2")
    web.wait_for("/api/overview", lambda found: found["counts"]["held"] == 2, "the next generation")
    text = lab.layout.status_file.read_text()
    line = next(line for line in text.splitlines() if '"fft_greek_s25"' in line)
    lab.layout.status_file.write_text(text.replace(line, line.replace("held", "queued")))
    seen = web.wait_for("/api/overview", lambda found: found["counts"]["held"] == 1, "the hand edit")
    assert "1 hand edit not applied yet" in seen["notices"][0]
    lab.layout.status_file.write_text(text[: len(text) // 2])
    seen = web.wait_for("/api/overview", lambda found: found["counts"]["held"] == 2, "a broken status file")
    assert any(one["kind"] == "problem" and "matrix_status.json" in one["text"] for one in seen["attention"])


def test_a_journal_that_was_cut_is_shown_as_it_is_now(serve, lab):
    path = lab.layout.journal(1)
    before = path.read_bytes()
    lab.workspace.hold("lora_hindi_s2")
    web = serve()
    assert at_rest(web)["counts"]["held"] == 2
    # A backup of the run state comes back.
    for old in (lab.layout.lock_file, lab.layout.status_file, lab.layout.saved_fold):
        old.unlink(missing_ok=True)
    path.write_bytes(before)
    web.wait_for("/api/overview", lambda found: found["counts"]["held"] == 1, "the backup")


def test_settings_are_read_again_when_they_change(serve, lab):
    web = serve()
    assert at_rest(web)["counts"]
    (lab.root / "dispatcher.yaml").write_text("matrix: [not a path\n")
    end_s = time.monotonic() + 30
    while (answer := web.get("/api/overview")).status == 200:
        assert time.monotonic() < end_s
        time.sleep(0.2)
    assert answer.status == 503 and "dispatcher.yaml" in answer.error
    (lab.root / "dispatcher.yaml").write_text("stall_after: 10m\n")
    web.wait_for("/api/overview", lambda found: found["counts"], "the settings are right again")
