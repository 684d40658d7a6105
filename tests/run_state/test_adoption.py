"""A lab moves in with the status file of its own script, wherever that stands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dispatcher.base import files
from dispatcher.config import load_config
from dispatcher.errors import ConfigError, StateError, StatusFileError
from dispatcher.run_state import adoption
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.projection import Projector, restore
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

LAB = {
    "a": {"state": "done", "pod": "shivam-0_tokfix", "pid": 3328333, "gpu": 2, "started_at": "2026-06-17T22:48:00Z"},
    "b": {"state": "queued"},
    "c": {"state": "runing", "pid": 7},
    "d": {"state": "running", "pid": "many"},
    "e": {"state": ["done"]},
}


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize("place", ["matrix", ".", "elsewhere"])
def test_nothing_begins_beside_a_file_that_nobody_has_adopted(layout: Layout, place: str) -> None:
    path = layout.root / place / "matrix_status.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(LAB))
    before = names(layout.root)
    store = Store(layout, by="pod-0", manifests=(layout.root / "elsewhere" / "matrix.json",))
    with (
        pytest.raises(StateError, match=r"dispatcher init --adopt .*matrix_status.json.*status_file: "),
        store.transaction(),
    ):
        pass
    assert names(layout.root) == before
    # Where there is a run state, this file is not it.
    layout.run_state.mkdir()
    layout.status_file.write_text('{"b": {"state": "failed"}}')
    with store.transaction() as tx:
        record = tx.record("b")
    assert record is not None
    assert record.state is State.FAILED


def test_lines_that_make_no_record_are_held_and_said(layout: Layout) -> None:
    path = layout.root / "matrix_status.json"
    path.write_text(json.dumps(LAB))
    store = Store(layout, by="pod-0")
    store.first.adopt_from = path
    with store.transaction():
        pass
    assert store.first.began_with == path
    assert {job: record.state for job, record in store.records.items()} == {
        "a": State.DONE, "b": State.QUEUED, "c": State.HELD, "d": State.HELD, "e": State.HELD,
    }  # fmt: skip
    assert "did you mean 'running'?" in store.fold.refusals["c"].why
    assert "pid" in store.fold.refusals["d"].why
    assert json.loads("{" + store.fold.refusals["c"].line + "}") == {"c": LAB["c"]}
    assert [kept.read_text() for kept in layout.rejected_dir.iterdir()] == [path.read_text()]
    Projector(store).write()
    assert json.loads(layout.status_file.read_bytes())["a"] == {**LAB["a"], "rev": 1}
    # Settled by the person who says what it is.
    lines = json.loads(layout.status_file.read_bytes())
    lines["c"]["state"] = "done"
    layout.status_file.write_text(json.dumps(lines))
    with store.transaction():
        pass
    assert store.records["c"].state is State.DONE
    assert set(store.fold.refusals) == {"d", "e"}


@pytest.mark.parametrize(
    "broken", [b"", b'{"a": {"state"', b'[{"state": "done"}]', b'{"a": {}, "a": {}}', b'{"a": "done"}']
)
def test_a_broken_file_is_refused_whole(layout: Layout, broken: bytes) -> None:
    path = layout.root / "matrix_status.json"
    path.write_bytes(broken)
    with pytest.raises(StatusFileError, match="line 1"):
        adoption.read_lab_file(layout, path)
    assert names(layout.root) == ["matrix_status.json"]


@pytest.fixture
def kept(layout: Layout) -> Layout:
    """A workspace whose status file stays where the lab has it."""
    layout.config_file.write_text("status_file: lab/status.json\n")
    (layout.root / "lab").mkdir()
    path = layout.root / "lab" / "status.json"
    path.write_text(json.dumps(LAB))
    return load_config(layout).layout


def test_the_status_file_may_stay_where_it_is(kept: Layout) -> None:
    store = Store(kept, by="pod-0")
    # A script has written it this moment, so it is looked at again, and its lines have no numbers yet.
    with store.transaction() as tx:
        tx.change("b", Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
    assert store.records["b"].desired is None
    seq = store.seq
    with store.transaction():
        pass
    assert (store.records["b"].desired, store.seq) == (None, seq)
    with store.transaction() as tx:
        tx.change("b", Event.HELD, Change(state=State.HELD))
    projector = Projector(store)
    projector.write()
    path = kept.root / "lab" / "status.json"
    assert json.loads(path.read_bytes())["b"]["state"] == "held"
    assert not (kept.run_state / "matrix_status.json").exists()
    projector.close()
    assert names(kept.root / "lab") == ["status.json"]
    # Edited in place, as ever.
    lines = json.loads(path.read_bytes())
    lines["b"]["state"] = "queued"
    path.write_text(json.dumps(lines))
    with store.transaction():
        pass
    assert store.records["b"].state is State.QUEUED


def test_what_a_dead_process_left_beside_the_status_file_is_taken_in(kept: Layout) -> None:
    store = Store(kept, by="pod-0")
    projector = Projector(store)
    projector.write()
    lines = json.loads(kept.status_file.read_bytes())
    lines["b"]["note"] = "saved at the last moment"
    left = files.temporary_name(kept.status_file)
    left = left.with_name(left.name.replace(f".{os.getpid()}.", ".999999999."))
    left.write_text(json.dumps(lines))
    projector.recover_leftovers()
    assert store.records["b"].extra == {"note": "saved at the last moment"}
    projector.close()
    assert names(kept.root / "lab") == ["status.json"]


def test_a_broken_status_file_elsewhere_is_kept_in_rejected(kept: Layout) -> None:
    store = Store(kept, by="pod-0")
    Projector(store).write()
    kept.status_file.write_text("{broken")
    with store.transaction():
        pass
    where = restore(store)
    assert where is not None
    assert where.parent == kept.rejected_dir
    assert set(json.loads(kept.status_file.read_bytes())) == set(LAB)


def test_a_link_to_the_status_file_stays_a_link(kept: Layout) -> None:
    link = kept.root / "link.json"
    link.symlink_to("lab/status.json")
    kept.config_file.write_text("status_file: link.json\n")
    assert load_config(Layout(kept.root)).layout.status_file == (kept.root / "lab" / "status.json").resolve()


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("lab", "a directory"),
        ("gone/status.json", "there is no directory"),
        ("matrix/matrix.json", "that is the manifest"),
        ("[1]", "status_file"),
    ],
)
def test_a_place_that_cannot_hold_the_status_file(kept: Layout, value: str, word: str) -> None:
    kept.config_file.write_text(f"status_file: {value}\n")
    with pytest.raises(ConfigError, match=word):
        load_config(Layout(kept.root))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("run_state/claims.lock", "the dispatchers' own lock"),
        ("lab/status.json", "which is replaced at every change"),
        ("gone/lock", "there is no directory"),
    ],
)
def test_a_lock_that_a_script_cannot_share(kept: Layout, value: str, word: str) -> None:
    kept.config_file.write_text(f"status_file: lab/status.json\nscript_lock: {value}\n")
    with pytest.raises(ConfigError, match=word):
        load_config(Layout(kept.root))
