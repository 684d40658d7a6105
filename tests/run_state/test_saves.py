"""People who save matrix_status.json while dispatchers work on it: in place, by rename, half, old, from a script."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest

from dispatcher.base.host import process_name
from dispatcher.errors import StatusFileError
from dispatcher.run_state import projection
from dispatcher.run_state.change import Change
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.events import Event
from dispatcher.run_state.head import peek_head
from dispatcher.run_state.projection import Projector, restore
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


@pytest.fixture
def store(layout: Layout) -> Store:
    made = Store(layout, by="pod-0")
    with made.transaction() as tx:
        for job in "abc":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
            tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
            tx.change(job, Event.FAILED, Change(state=State.FAILED, error="boom"))
    Projector(made).write()
    return made


def write_in_place(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def write_by_rename(path: Path, text: str) -> None:
    temporary = path.with_name("." + path.name + ".swp")
    temporary.write_text(text, encoding="utf-8")
    os.rename(temporary, path)


def loaded(layout: Layout) -> dict[str, dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = json.loads(layout.status_file.read_bytes())
    return lines


def touch(store: Store) -> None:
    """A transaction with nothing of its own."""
    with store.transaction():
        pass


@pytest.mark.parametrize("save", [write_in_place, write_by_rename])
def test_both_kinds_of_saves_are_taken_in(layout: Layout, store: Store, save: Callable[[Path, str], None]) -> None:
    text = layout.status_file.read_text(encoding="utf-8")
    save(layout.status_file, text.replace('"a": {"state": "failed"', '"a": {"state": "queued","note":"ключ"'))
    # Saved a while ago: nobody needs to look at it again.
    os.utime(layout.status_file, (time.time() - 60, time.time() - 60))
    touch(store)
    head = peek_head(layout.lock_file)
    assert head is not None
    assert head.projection == store.status_identity()
    assert store.records["a"].state is State.QUEUED
    assert store.records["a"].extra == {"note": "ключ"}
    assert store.records["b"].state is State.FAILED
    Projector(store).write()
    assert loaded(layout)["a"]["note"] == "ключ"


def test_the_snippet_of_the_lab_requeues(layout: Layout, store: Store) -> None:
    snippet = """
        import json, sys
        f, job = sys.argv[1:]
        s = json.load(open(f)); s[job]["state"] = "queued"; json.dump(s, open(f, "w"))
    """
    for job in "ab":
        subprocess.run([sys.executable, "-c", textwrap.dedent(snippet), layout.status_file, job], check=True)
        # Meanwhile somebody else's entry has moved on.
        with store.transaction() as tx:
            if job == "a":
                tx.change("c", Event.REQUEUED, Change(state=State.QUEUED))
        assert store.records[job].state is State.QUEUED
    assert store.records["c"].state is State.QUEUED
    Projector(store).write()
    assert {job: line["state"] for job, line in loaded(layout).items()} == dict.fromkeys("abc", "queued")


def test_a_script_that_rewrites_an_old_copy_changes_its_one_line(layout: Layout, store: Store) -> None:
    copy = loaded(layout)
    with store.transaction() as tx:
        tx.change("b", Event.REQUEUED, Change(state=State.QUEUED))
        tx.change("b", Event.CLAIMED, Change(state=State.RUNNING, attempt=2))
        tx.change("new", Event.QUEUED, Change(state=State.QUEUED))
    Projector(store).write()
    copy["a"]["state"] = "queued"
    write_in_place(layout.status_file, json.dumps(copy))
    # A dispatcher that has just started remembers no old versions.
    other = Store(layout, by="pod-1")
    touch(other)
    assert other.records["a"].state is State.QUEUED
    assert (other.records["b"].state, other.records["b"].attempt) == (State.RUNNING, 2)
    assert "new" in other.records
    assert other.fold.refusals == {}


def test_a_whole_copy_that_is_thousands_of_changes_old_costs_one_reading_of_the_journal(layout: Layout) -> None:
    store = Store(layout, by="pod-0")
    jobs = [f"job{number}" for number in range(3_000)]
    with store.transaction() as tx:
        for job in jobs:
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    Projector(store).write()
    copy = loaded(layout)
    for state in ("running", "done"):
        with store.transaction() as tx:
            for job in jobs:
                tx.change(job, Event.EDITED, Change(state=state))
    copy["job7"]["priority"] = 9
    write_in_place(layout.status_file, json.dumps(copy))
    newcomer = Store(layout, by="pod-1")
    begun_s = time.process_time()
    Store(layout, by="reader").refresh(to_the_end=True)
    reading_s = time.process_time() - begun_s
    begun_s = time.process_time()
    touch(newcomer)
    # Line by line it would be three thousand readings.
    assert time.process_time() - begun_s < 100 * reading_s
    assert newcomer.records["job7"].priority == 9
    assert {record.state for record in newcomer.records.values()} == {State.DONE}
    assert newcomer.fold.refusals == {}


def test_an_editor_that_has_the_file_open_while_it_is_replaced(layout: Layout, store: Store) -> None:
    projector = Projector(store)
    with open(layout.status_file, "r+", encoding="utf-8") as editor:
        text = editor.read()
        with store.transaction() as tx:
            tx.change("b", Event.REQUEUED, Change(state=State.QUEUED))
        projector.write()
        editor.seek(0)
        editor.write(text.replace('"a": {"state": "failed"', '"a": {"state": "queued"'))
        editor.truncate()
        editor.flush()
        # The name leads to another file by now.
        assert os.fstat(editor.fileno()).st_ino != layout.status_file.stat().st_ino
        projector.check_replaced()
    assert store.records["a"].state is State.QUEUED
    assert store.records["b"].state is State.QUEUED
    projector.write()
    assert loaded(layout)["a"]["state"] == "queued"
    projector.close()


def test_a_command_that_ends_waits_for_a_save_that_is_half_written(layout: Layout, store: Store) -> None:
    projector = Projector(store)
    text = layout.status_file.read_text(encoding="utf-8").replace('"a": {"state": "failed"', '"a": {"state": "queued"')
    with store.transaction() as tx:
        tx.change("b", Event.REQUEUED, Change(state=State.QUEUED))
    with open(layout.status_file, "r+", encoding="utf-8") as editor:
        projector.write()
        editor.truncate(0)
        editor.write(text[:40])
        editor.flush()
        rest = f"import os, time; time.sleep(0.2); os.write(1, {text[40:].encode()!r})"
        with subprocess.Popen([sys.executable, "-c", rest], stdout=editor.fileno()):
            projector.close()
    assert store.records["a"].state is State.QUEUED


def test_what_others_change_is_projected_too(layout: Layout, store: Store) -> None:
    assert not store.status_is_stale
    with Store(layout, by="pod-1").transaction() as tx:
        tx.change("a", Event.REQUEUED, Change(state=State.QUEUED))
    touch(store)
    assert store.status_is_stale
    Projector(store).write()
    assert loaded(layout)["a"]["state"] == "queued"
    # And what somebody else has projected is not written again.
    identity = store.status_identity()
    other = Store(layout, by="pod-2")
    Projector(other).write()
    assert store.status_identity() == identity


BROKEN = {
    "empty": b"",
    "garbage": b"\x00\xff\x13 garbage",
    "duplicate keys": b'{"a": {"state": "queued"},\n"a": {"state": "held"}}',
    "NaN": b'{"a": {"state": "queued", "loss": NaN}}',
    "a million brackets": b"[" * 1_000_000,
    "a million nested entries": b'{"a":' * 1_000_000,
    "a missing brace": b'{"a": {"state": "queued"}\n',
    "a list": b'["a"]',
    "half of it": b'{\n"a": {"state": "failed","attem',
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_stops_nothing_and_is_left_alone(layout: Layout, store: Store, name: str) -> None:
    records = dict(store.records)
    layout.status_file.write_bytes(BROKEN[name])
    projector = Projector(store)
    with store.transaction() as tx:
        tx.change("b", Event.REQUEUED, Change(state=State.QUEUED))
    assert store.records["a"] == records["a"]
    assert store.problem is not None
    assert re.search(r"matrix_status\.json: lines? [12]\b", store.problem)
    assert "status --restore" in store.problem
    projector.write()
    assert layout.status_file.read_bytes() == BROKEN[name]
    # One who only looks is told too, and changes nothing.
    reader = Store(layout, by="reader")
    reader.refresh()
    assert not reader.pending_edits()
    assert reader.problem == store.problem
    # The person corrects it: what they wanted happens.
    layout.status_file.write_bytes(
        status_file.render(records).replace(b'"a": {"state": "failed"', b'"a": {"state": "held"')
    )
    touch(store)
    assert store.problem is None
    assert store.records["a"].state is State.HELD
    assert store.records["b"].state is State.QUEUED


def test_restore_keeps_the_broken_file_and_writes_a_good_one(layout: Layout, store: Store) -> None:
    assert restore(store) is None
    layout.status_file.write_bytes(b"{broken")
    kept = restore(store)
    assert kept is not None
    assert kept.parent == layout.rejected_dir
    assert kept.read_bytes() == b"{broken"
    assert layout.status_file.read_bytes() == status_file.render(store.records)
    assert store.problem is None


def test_a_first_start_with_a_broken_status_file_guesses_nothing(layout: Layout) -> None:
    layout.run_state.mkdir()
    data = b'{"a": {"state"'
    layout.status_file.write_bytes(data)
    with pytest.raises(StatusFileError, match="line 1"):
        touch(Store(layout, by="pod-0"))
    assert layout.status_file.read_bytes() == data
    assert list(layout.journal_dir.iterdir()) == []


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_lab_comes_with_its_own_file(layout: Layout, mark: bytes) -> None:
    lab = {
        "fft_spanish_cfgB_s42_main": {
            "state": "done", "pod": "shivam-0_tokfix", "pid": 3328333, "gpu": 2,
            "started_at": "2026-06-17T22:48:00Z", "finished_at": "2026-06-17T26:12:00Z",
        },
        "fft_hindi_cfgB_s42_main": {"state": "failed", "gpu": [2, 3], "checked by": ["me", {"on": None}]},
    }  # fmt: skip
    layout.run_state.mkdir()
    layout.status_file.write_bytes(mark + json.dumps(lab, indent=4).encode())
    store = Store(layout, by="pod-0")
    touch(store)
    assert store.records["fft_spanish_cfgB_s42_main"].finished_at == "2026-06-17T26:12:00Z"
    Projector(store).write()
    assert {job: {k: v for k, v in line.items() if k != "rev"} for job, line in loaded(layout).items()} == lab
    # The lab's own tools go on writing it without our numbers.
    lab["fft_hindi_cfgB_s42_main"]["state"] = "queued"
    write_in_place(layout.status_file, json.dumps(lab))
    touch(store)
    assert store.records["fft_hindi_cfgB_s42_main"].state is State.QUEUED
    assert store.fold.refusals == {}


def test_what_is_refused_is_kept_word_for_word_wherever_its_name_leads(layout: Layout, store: Store) -> None:
    copy = loaded(layout)
    copy["../../../outside"] = {"state": "quued"}
    copy["a"]["state"] = "quued"
    write_in_place(layout.status_file, json.dumps(copy))
    touch(store)
    assert set(store.fold.refusals) == {"../../../outside", "a"}
    kept = sorted(path.read_text(encoding="utf-8") for path in layout.rejected_dir.iterdir())
    assert [json.loads("{" + text + "}") for text in kept] == [
        {"../../../outside": {"state": "quued"}},
        {"a": copy["a"]},
    ]
    Projector(store).write()
    assert set(loaded(layout)) == {"a", "b", "c"}
    # Said once, not at every look.
    seq = store.seq
    touch(store)
    assert store.seq == seq


def test_an_edit_is_not_lost_when_the_transaction_that_took_it_in_fails(layout: Layout, store: Store) -> None:
    copy = loaded(layout)
    copy["a"]["state"] = "queued"
    write_in_place(layout.status_file, json.dumps(copy))
    with pytest.raises(ZeroDivisionError), store.transaction():
        assert store.records["a"].state is State.QUEUED
        raise ZeroDivisionError
    assert store.records["a"].state is State.FAILED
    # By this a dispatcher sees that there is something to take in.
    assert store.status_identity() not in (store.expected_projection, store.examined)
    touch(store)
    assert store.records["a"].state is State.QUEUED
    assert store.status_identity() in (store.expected_projection, store.examined)


def test_two_saves_of_one_length_within_one_tick_of_the_clock(layout: Layout, store: Store) -> None:
    """The second looks like the first: same file, same size, same time."""
    text = layout.status_file.read_text(encoding="utf-8")
    first = text.replace('"a": {"state": "failed"', '"a": {"state": "queued"')
    second = text.replace('"b": {"state": "failed"', '"b": {"state": "queued"')
    assert len(first) == len(second)
    write_in_place(layout.status_file, first)
    now_ns = time.time_ns()
    os.utime(layout.status_file, ns=(now_ns, now_ns))
    touch(store)
    write_in_place(layout.status_file, second)
    os.utime(layout.status_file, ns=(now_ns, now_ns))
    Projector(store).write()
    assert (store.records["a"].state, store.records["b"].state) == (State.QUEUED, State.QUEUED)


@pytest.mark.parametrize("exchange", [True, False], ids=["names are exchanged", "renamed over, as on NFS"])
@pytest.mark.parametrize("save", [write_in_place, write_by_rename])
def test_a_save_at_the_moment_of_the_replacement(
    layout: Layout,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    save: Callable[[Path, str], None],
    exchange: bool,
) -> None:
    """The dispatcher has looked, and then the person saves, and then the file is replaced."""
    renameat2 = projection._renameat2()
    if renameat2 is None:
        pytest.skip("this C library cannot exchange names")
    text = layout.status_file.read_text(encoding="utf-8").replace('"a": {"state": "failed"', '"a": {"state": "queued"')
    tries: list[Any] = []

    def late(*names: Any) -> int:
        tries.append(names)
        if len(tries) == 1:
            save(layout.status_file, text)
        if exchange:
            return renameat2(*names)
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(projection, "_renameat2", lambda: late)
    with store.transaction() as tx:
        tx.change("b", Event.REQUEUED, Change(state=State.QUEUED))
    projector = Projector(store)
    projector.write()
    # It was written twice: where names cannot be exchanged, that is not tried again.
    assert len(tries) == (2 if exchange else 1)
    assert store.records["a"].state is State.QUEUED
    assert loaded(layout)["a"]["state"] == loaded(layout)["b"]["state"] == "queued"
    projector.close()


def test_a_save_that_a_killed_dispatcher_had_just_replaced(layout: Layout, store: Store) -> None:
    """It died between the exchange of names and the look at what came out."""
    text = layout.status_file.read_text(encoding="utf-8").replace('"a": {"state": "failed"', '"a": {"state": "queued"')
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = layout.run_state / f".{layout.status_file.name}.{process_name(dead.pid)}.0.tmp"
    left.write_text(text, encoding="utf-8")
    half = layout.run_state / f".{layout.status_file.name}.{process_name(dead.pid)}.1.tmp"
    half.write_text(text[:50], encoding="utf-8")
    projector = Projector(store)
    projector.recover_leftovers()
    assert store.records["a"].state is State.QUEUED
    assert store.problem is None
    assert not left.exists()
    assert not half.exists()


def requeue_as_nobody(layout: Layout) -> None:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    store = Store(layout, by="pod-1")
    with store.transaction() as tx:
        tx.change("a", Event.REQUEUED, Change(state=State.QUEUED))
    assert "Permission denied" in (store.problem or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_this_user_may_not_read_stops_nothing(layout: Layout, store: Store) -> None:
    store.close()
    for path in (layout.root, *layout.root.rglob("*")):
        os.chown(path, 65534, 65534)
    for parent in layout.root.parents:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
    write_by_rename(layout.status_file, "{}")
    layout.status_file.chmod(0o600)
    os.chown(layout.status_file, 0, 0)
    assert forks.run(requeue_as_nobody, layout) == 0
    store.refresh()
    assert store.records["a"].state is State.QUEUED


def test_editors_and_dispatchers_at_the_same_time_lose_nothing(layout: Layout, store: Store) -> None:
    """A script that never locks rewrites the whole file again and again while the store and its projection go on."""
    with store.transaction() as tx:
        for number in range(40):
            tx.change(f"job{number}", Event.QUEUED, Change(state=State.QUEUED))
    projector = Projector(store)
    projector.write()
    program = f"""
        import json, os, random, sys, time
        path, rng = {str(layout.status_file)!r}, random.Random(7)
        for number in range(40):
            job = f"job{{number}}"
            while True:
                try:
                    with open(path) as file:
                        lines = json.load(file)
                except ValueError:
                    time.sleep(0.001)
                    continue
                if lines[job].get("note") == number:
                    break
                lines[job]["note"] = number
                if rng.random() < 0.5:
                    with open(path, "w") as file:
                        json.dump(lines, file)
                else:
                    with open(path + ".swp", "w") as file:
                        json.dump(lines, file)
                    os.rename(path + ".swp", path)
                time.sleep(0.02)
    """
    rng = random.Random(8)
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stderr=subprocess.PIPE) as script:
        deadline = time.monotonic() + 60
        turns = 0
        while script.poll() is None:
            assert time.monotonic() < deadline, "the script's notes do not come through"
            turns += 1
            job = f"job{rng.randrange(40)}"
            with store.transaction() as tx:
                tx.change(job, Event.EDITED, Change(priority=turns))
            projector.write()
            projector.check_replaced()
        assert script.returncode == 0, script.stderr.read() if script.stderr else ""
    projector.check_replaced()
    projector.write()
    assert [store.records[f"job{number}"].extra.get("note") for number in range(40)] == list(range(40))
    assert turns == max(record.priority or 0 for record in store.records.values())
    assert loaded(layout) == json.loads(status_file.render(store.records))
    projector.close()
