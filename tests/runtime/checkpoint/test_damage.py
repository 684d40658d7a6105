"""Damaged checkpoints are reported and set aside, the one before is taken; lost pointers and newer formats."""

from __future__ import annotations

import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from dispatcher.checkpoints.manifest import FileRecord, decode, encode
from dispatcher.checkpoints.scratch import Scratch
from dispatcher.errors import CheckpointError, DamagedCheckpointError, FormatError
from dispatcher.runtime.checkpoint import CheckpointManager


@pytest.fixture
def two(tmp_path, state) -> Path:
    """A directory with checkpoints of steps 1 and 2."""
    with CheckpointManager(tmp_path / "run") as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.save(state(2), 2)
    return tmp_path / "run"


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "empty"])
def test_whatever_file_is_damaged_the_one_before_is_taken(two, state, same, caplog, damage):
    whole = two.with_name("whole")
    two.rename(whole)
    for path in files_of(whole / "step-00000002"):
        if damage != "remove" and not path.stat().st_size:
            continue
        shutil.copytree(whole, two)
        victim = two / path.relative_to(whole)
        caplog.clear()
        if damage == "flip":
            flip(victim, victim.stat().st_size // 2)
        elif damage == "truncate":
            victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
        elif damage == "remove":
            victim.unlink()
        else:
            victim.write_bytes(b"")
        with CheckpointManager(two) as checkpoints, caplog.at_level(logging.WARNING):
            same(checkpoints.restore(state(0)), state(1))
            assert [each.step for each in checkpoints.checkpoints()] == [1]
        if victim.name != "manifest.json" or damage != "remove":
            assert victim.name in caplog.text, caplog.text
            assert len(list((two / "damaged").iterdir())) == 1
        shutil.rmtree(two)


def test_a_name_is_free_again_when_its_checkpoint_was_set_aside(two, state, same):
    (two / "step-00000002" / "tree.json").write_bytes(b"{}")
    with CheckpointManager(two) as checkpoints:
        assert checkpoints.restore(state(0))["step"] == 1
        checkpoints.save(state(2), 2)
        same(checkpoints.restore(state(0)), state(2))


def test_the_report_names_file_and_checksums(two, state, caplog):
    victim = next(path for path in files_of(two / "step-00000002") if path.parent.name == "d")
    size = victim.stat().st_size
    flip(victim, 5)
    with CheckpointManager(two) as checkpoints:
        checkpoints.restore(state(0))
    relative = victim.relative_to(two / "step-00000002").as_posix()
    assert f"{two}/step-00000002: the checkpoint is damaged\n  {relative}: checksum " in caplog.text
    (aside,) = (two / "damaged").iterdir()
    assert f"it was moved to {aside}; the one before it is used" in caplog.text
    assert (aside / relative).stat().st_size == size


def test_one_that_was_asked_for_is_not_exchanged_for_another(two, state):
    (two / "step-00000002" / "rng").unlink()
    with CheckpointManager(two) as checkpoints:
        with pytest.raises(DamagedCheckpointError, match=r"step-00000002: the checkpoint is damaged\n  rng: missing"):
            checkpoints.restore(state(0), checkpoints.find("step-00000002"))
        assert (two / "step-00000002").exists()


def test_when_all_are_damaged_nothing_starts_over_silently(two, state):
    for step in (1, 2):
        (two / f"step-0000000{step}" / "tree.json").unlink()
    for _ in range(2):
        with CheckpointManager(two) as checkpoints:
            with pytest.raises(CheckpointError, match=r"run: every checkpoint was damaged and set aside \(.*damaged\)"):
                checkpoints.resume(state(0))
            assert checkpoints.latest() is None
    shutil.rmtree(two / "damaged")
    with CheckpointManager(two) as checkpoints:
        assert checkpoints.resume(state(0)) is None


def test_damaged_ones_that_cannot_be_moved_are_no_beginning(two, state):
    for step in (1, 2):
        (two / f"step-0000000{step}" / "manifest.json").write_bytes(b"{")
    (two / "damaged").write_text("a file where the directory would be")
    none = pytest.raises(CheckpointError, match=r"damaged \(step-00000001, step-00000002\), and none could be set")
    with CheckpointManager(two) as checkpoints, none:
        checkpoints.resume(state(0))


def test_a_directory_without_a_manifest_is_no_checkpoint(two, state, same):
    (two / "step-00000002" / "manifest.json").unlink()
    with CheckpointManager(two) as checkpoints:
        assert checkpoints.latest().step == 1
        checkpoints.save(state(2), 2)
        same(checkpoints.restore(state(0)), state(2))


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"checkpoint": "step-00000009", "order": [9, 9, 9]}', b"\xff"])
def test_a_lost_or_wrong_pointer_is_survived(two, state, same, content):
    (two / "latest").unlink()
    if content is not None:
        (two / "latest").write_bytes(content)
    with CheckpointManager(two) as checkpoints:
        assert checkpoints.latest().step == 2
        same(checkpoints.restore(state(0)), state(2))


def test_a_pointer_that_was_not_updated_does_not_cost_a_checkpoint(two):
    before = (two / "latest").read_bytes()
    with CheckpointManager(two) as checkpoints:
        checkpoints.save({"x": 1}, 3)
    (two / "latest").write_bytes(before)
    with CheckpointManager(two) as checkpoints:
        assert checkpoints.latest().step == 3


def test_what_is_registered_is_the_latest_until_something_is_saved(two, state):
    with CheckpointManager(two) as checkpoints:
        checkpoints.save(state(0), 0, name="best", resumable=False)
        checkpoints.wait()
        assert checkpoints.latest().step == 2
        assert checkpoints.register("best").name == "best"
        assert checkpoints.latest().name == "best"
        checkpoints.register("step-00000001")
        assert checkpoints.latest().step == 1
        checkpoints.save(state(3), 3)
        checkpoints.wait()
        assert checkpoints.latest().step == 3
        with pytest.raises(CheckpointError, match=r"no such checkpoint \(known: step-00000001, "):
            checkpoints.register("worst")


def test_a_newer_format_is_refused_and_not_touched(two, state):
    path = two / "step-00000002" / "manifest.json"
    path.write_text(json.dumps({"format": 2, "whatever": "comes next"}))
    before = {each: each.read_bytes() for each in files_of(two)}
    with CheckpointManager(two) as checkpoints:
        for act in (
            checkpoints.latest,
            checkpoints.checkpoints,
            lambda: checkpoints.restore(state(0)),
            lambda: checkpoints.save(state(3), 3),
            lambda: checkpoints.find("step-00000002"),
        ):
            with pytest.raises(FormatError, match=r"step-00000002/manifest.json: format 2, written by a newer"):
                act()
    assert {each: each.read_bytes() for each in files_of(two)} == before


@pytest.mark.parametrize("path", ["../../../escaped", "/tmp/escaped", "checkpoint/../../escaped"])
def test_a_manifest_that_leads_out_of_its_checkpoint_is_refused(two, state, same, path):
    """Of a checkpoint that somebody else has made: its files would be read, or written by a download."""
    place = two / "step-00000002" / "manifest.json"
    whole = decode(place.read_bytes(), "")
    for changed in (
        msgspec.structs.replace(whole, files=(*whole.files, FileRecord(path, 1, "0"))),
        msgspec.structs.replace(whole, blobs=path),
    ):
        with pytest.raises(DamagedCheckpointError, match=r"manifest.json: lists '.*', which is outside"):
            decode(encode(changed), str(place))
    place.write_bytes(encode(changed))
    with CheckpointManager(two) as checkpoints:
        same(checkpoints.restore(state(0)), state(1))


def test_processes_that_come_and_go_do_not_take_each_others_scratch(tmp_path):
    """One that is done removes the directory that the others have just looked for."""
    home = tmp_path / "ckpt.tmp"

    def come_and_go(turns: int) -> None:
        for _ in range(turns):
            scratch = Scratch(home)
            scratch.new().mkdir()
            scratch.close()

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(come_and_go, 300) for _ in range(4)]:
            each.result()
    assert not home.exists()
