"""A manifest that is replaced while dispatchers run, and several manifests in one workspace."""

from __future__ import annotations

import os

from fleet import Fleet, shell, wait_until


def test_new_entries_are_queued_at_once(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    fleet.start("pod", poll="600")
    fleet.wait_for("a", "done")
    fleet.write_manifest([shell("a", "true"), shell("b", "true")])
    # Long before the poll interval is over.
    fleet.wait_for("b", "done")


def test_a_broken_manifest_changes_nothing(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true"), shell("b", "true", needs=["a"])])
    pod = fleet.start("pod", "--max-jobs", "4", poll="600")
    fleet.wait_for("b", "done")
    path = fleet.layout.default_matrix
    path.write_text('[{"job_id": "c", "method": "m"},')
    said = pod.says("so the previous manifest is kept")
    assert path.name in said
    wait_until(
        lambda: "so the previous manifest is kept" in fleet.run("pods"), "`pods` says that the manifest is broken"
    )
    fleet.run("requeue", "a")
    fleet.wait_for("a", "done", attempt=2)
    # Opening it to read would wait for a writer.
    os.mkfifo(path.with_name("pipe"))
    path.with_name("pipe").rename(path)
    pod.says("cannot be read: no plain file")
    path.unlink()
    fleet.write_manifest([shell("c", "true"), shell("a", "true"), shell("b", "true")])
    fleet.wait_for("c", "done")
    assert pod.end() == 0


def test_a_broken_manifest_at_the_start_is_an_error(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true"), shell("a", "true"), shell("b", "true", needs=["nobody"])])
    pod = fleet.start()
    assert pod.end() == 1
    assert "duplicate job_id: a (entries 1 and 2)" in pod.said
    assert "nobody" in pod.said
    assert "Traceback" not in pod.said


def test_a_pod_that_is_to_end_when_nothing_is_left_needs_a_manifest(fleet: Fleet) -> None:
    fleet.write_config("")
    pod = fleet.start("pod", "--until-empty")
    assert pod.end() == 1
    assert "matrix.json" in pod.said
    assert "there is no such file; write it, or make it with `dispatcher matrix make`" in pod.said
    assert "Traceback" not in pod.said


def test_vanished_entries_are_kept_and_not_claimed(fleet: Fleet) -> None:
    running = "echo begun; until [ -e go ]; do sleep 0.02; done"
    fleet.write_manifest([shell("a", running), shell("b", "true"), shell("c", "true")])
    fleet.start("pod", poll="600")
    fleet.wait_running("a")
    fleet.write_manifest([shell("c", "true"), shell("d", "true")])
    wait_until(lambda: "d" in fleet.records(), "the new manifest is in force")
    (fleet.root / "go").touch()
    fleet.wait_for("d", "done")
    assert fleet.states() == {"a": "done", "b": "queued", "c": "done", "d": "done"}
    assert fleet.status()["b"]["state"] == "queued"


def test_two_manifests_in_one_workspace(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true"), shell("b", "true")])
    fleet.write_manifest([shell("b", "true"), shell("c", "true", needs=["b"])], "subset.json")
    fleet.run_all("--matrix", "subset.json", pod="one")
    assert fleet.states() == {"b": "done", "c": "done"}
    fleet.run_all(pod="two")
    assert fleet.states() == {"a": "done", "b": "done", "c": "done"}
    assert fleet.claimed() == ["b", "c", "a"], "an entry that is in both ran twice"


def test_needs_in_another_manifest(fleet: Fleet) -> None:
    fleet.write_manifest([shell("base", "true")])
    one = fleet.start("one", poll="600")
    fleet.wait_for("base", "done")
    fleet.write_manifest([shell("tuned", "true", needs=["base"])], "tuned.json")
    fleet.run_all("--matrix", "tuned.json", pod="two")
    assert fleet.states() == {"base": "done", "tuned": "done"}
    assert one.stop() == 0


def test_a_forgotten_entry_is_queued_anew(fleet: Fleet) -> None:
    """Under the next number, although the dispatcher that made the old attempt's directory lives."""
    fleet.write_manifest([shell("a", "true"), shell("long", "echo begun; sleep 600")])
    fleet.start("other", "--max-jobs", "2")
    fleet.wait_running("long")
    fleet.start("pod", poll="600").ready()
    fleet.run("delete", "a", "--yes")
    assert fleet.wait_for("a", "done").attempt == 2, "an attempt's number was used again"
