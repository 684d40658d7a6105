"""matrix/submitted.jsonl as pods read it: only what was appended, unless somebody has edited the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dispatcher.matrix import strict_json, submitted
from dispatcher.matrix.submitted import Listed, SubmittedChanges, SubmittedJobs, is_submitted


def line(job: str, **keys: object) -> str:
    return json.dumps({"job_id": job, "method": "command", **keys}) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "submitted.jsonl"


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def test_what_is_appended_is_read_once(path: Path) -> None:
    jobs = SubmittedJobs(path)
    assert jobs.read() == SubmittedChanges()
    append(path, line("a") + line("b")[:-10])
    assert jobs.read() == SubmittedChanges(("a",)), "an unfinished line is none"
    append(path, line("b")[-10:] + line("c"))
    assert jobs.read() == SubmittedChanges(("b", "c"))
    assert jobs.read() == jobs.read(thoroughly=True) == SubmittedChanges()
    assert list(jobs.entries) == ["a", "b", "c"]
    assert all(map(is_submitted, jobs.entries.values()))
    assert not jobs.problem


def test_the_last_line_of_a_job_counts(path: Path) -> None:
    jobs = SubmittedJobs(path)
    append(path, "".join(line(f"j{n}", x=n) for n in range(40)))
    jobs.read()
    assert jobs.entries["j3"].value("x") == 3
    append(path, line("j3", x="new"))
    assert jobs.read() == SubmittedChanges(("j3",), replaced=("j3",))
    # Its neighbours are unpacked together with the line that counts no more.
    assert [jobs.entries[job].value("x") for job in ("j2", "j3", "j4")] == [2, "new", 4]
    assert len(jobs.entries) == 40


def test_lines_that_were_cut_off_and_replaced_by_others(path: Path) -> None:
    jobs = SubmittedJobs(path)
    append(path, line("a") + line("bad"))
    jobs.read()
    os.truncate(path, len(line("a")))
    append(path, line("new"))
    assert jobs.read().is_rewritten
    assert list(jobs.entries) == ["a", "new"]


def test_edits_in_place_are_seen_when_looked_for(path: Path) -> None:
    jobs = SubmittedJobs(path)
    text = line("a", x=1) + "".join(line(f"j{n}") for n in range(500))
    append(path, text)
    jobs.read(thoroughly=True)
    with open(path, "r+") as file:
        file.write(text.replace('"x": 1', '"x": 2'))
    os.utime(path, ns=(1, 1))
    assert jobs.read(thoroughly=True).is_rewritten
    assert jobs.entries["a"].value("x") == 2


def test_a_faulty_line_stops_no_other_and_keeps_its_job(path: Path) -> None:
    jobs = SubmittedJobs(path)
    append(path, line("a", x=1) + line("b") + line("c"))
    jobs.read(thoroughly=True)
    path.write_text(line("a", x=1).replace("{", "", 1) + line("c") + line("d", gpus=-1) + line("e"))
    jobs.read(thoroughly=True)
    assert sorted(jobs.entries) == ["a", "b", "c", "e"], "what was read before stays as long as something is wrong"
    assert "line 1: " in jobs.problem
    assert "line 3: gpus = -1" in jobs.problem
    path.write_text(line("c") + line("e"))
    jobs.read(thoroughly=True)
    assert sorted(jobs.entries) == ["c", "e"]
    assert not jobs.problem


def test_an_editor_that_leaves_no_line_break_at_the_end(path: Path) -> None:
    jobs = SubmittedJobs(path)
    path.write_text(line("a") + line("b").rstrip("\n"))
    jobs.read()
    assert list(jobs.entries) == ["a", "b"]
    append(path, "\n" + line("c"))
    jobs.read()
    assert list(jobs.entries) == ["a", "b", "c"]


@pytest.fixture
def always_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitted, "_LEAST_BYTES", 1)


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that are decoded from now on."""
    lines: list[bytes] = []
    decode = strict_json.decode
    monkeypatch.setattr(strict_json, "decode", lambda data: (lines.append(data), decode(data))[1])
    return lines


@pytest.mark.usefixtures("always_saved")
def test_what_was_saved_need_not_be_decoded_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = path.with_name("submitted.saved")
    first = SubmittedJobs(path, saved)
    append(path, "".join(line(f"j{n}", x=n) for n in range(100)))
    first.read()
    append(path, line("j5", x="new") + line("last"))
    first.read()
    first.save(path.parent)
    append(path, line("more", gpus=2) + line("j7", x="newest"))
    lines = decoded(monkeypatch)
    second = SubmittedJobs(path, saved)
    news = second.read(thoroughly=True)
    assert len(lines) == 2
    assert set(news.added) == {*(f"j{n}" for n in range(100)), "last", "more"}
    first.read()
    assert second.entries == first.entries
    assert [one.order for one in second.entries.values()] == [one.order for one in first.entries.values()]
    assert [second.entries[job].value("x") for job in ("j4", "j5", "j7")] == [4, "new", "newest"]
    # What is appended later is taken in as by who has read all of it.
    append(path, line("end"))
    assert second.read() == first.read() == SubmittedChanges(("end",))
    kinds = dict(zip(second.entries, second.entries.all_kinds(), strict=True))
    assert kinds["j1"] == kinds["j99"] != kinds["more"] != kinds["last"]


@pytest.mark.usefixtures("always_saved")
@pytest.mark.parametrize("change", ["edited", "shorter", "damaged", "another version"])
def test_what_was_saved_of_other_lines_does_not_count(path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = path.with_name("submitted.saved")
    first = SubmittedJobs(path, saved)
    append(path, "".join(line(f"j{n}", x=n) for n in range(20)))
    first.read()
    first.save(path.parent)
    if change == "edited":
        path.write_text(path.read_text().replace('"x": 3', '"x": 4', 1))
    elif change == "shorter":
        os.truncate(path, len(line("j0", x=0)))
    elif change == "damaged":
        saved.write_bytes(saved.read_bytes()[:-3] + b"abc")
    else:
        monkeypatch.setattr(submitted, "_VERSION", "other")
    lines = decoded(monkeypatch)
    second = SubmittedJobs(path, saved)
    second.read()
    assert len(second.entries) == len(lines) == (1 if change == "shorter" else 20)
    assert change == "shorter" or second.entries["j3"].value("x") == (4 if change == "edited" else 3)


def test_manifest_and_submitted_jobs_as_one(path: Path) -> None:
    jobs, manifest = SubmittedJobs(path), SubmittedJobs(path.with_name("other"))
    append(path, line("a", x=1) + line("b") + line("c"))
    append(manifest.path, line("b", x="first") + line("z"))
    jobs.read()
    manifest.read()
    ad_hoc = {"a", "c"}
    both = Listed(manifest.entries, jobs.entries, ad_hoc.__contains__)
    assert (list(both), len(both)) == (["b", "z", "a", "c"], 4)
    assert both["b"].value("x") == "first"
    ad_hoc.remove("a")
    assert (list(both), len(both), both.get("a")) == (["b", "z", "c"], 3, None)
