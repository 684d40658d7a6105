"""Whose a job is: as its entry says, else the owner of the manifest's file."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from dispatcher.base.users import name_of, owner_by, user_name, user_of
from dispatcher.base.values import BadValueError, parse_user
from dispatcher.matrix import Entry, load_manifest
from dispatcher.matrix.entry import read_entry
from dispatcher.matrix.owners import with_owners
from dispatcher.matrix.saved_entries import read, save

ME = name_of(os.getuid())


def test_an_entry_is_of_whom_it_names_else_of_the_owner_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('[{"job_id": "a", "method": "m", "user": "ada"}, {"job_id": "b", "method": "m", "lr": 1}]')
    first, second = load_manifest(path).entries.values()
    assert (first.user, second.user, second.value("user")) == ("ada", ME, ME)
    assert second.document() == {"job_id": "b", "method": "m", "lr": 1, "user": ME}
    # What attempts run with says it too, and is the same to the job.
    assert read_entry(second.document(), 0)[0].user == ME
    assert (
        second.digest() == second.owned_by("bob").digest() == Entry(job_id="b", method="m", params={"lr": 1}).digest()
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_saved_entries_are_not_those_of_another_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.matrix.saved_entries._LARGE_BYTES", 1)
    path, saved = tmp_path / "m.json", tmp_path / "saved"
    path.write_text('[{"job_id": "a", "method": "m"}]')
    entries = load_manifest(path).entries
    save(saved, tmp_path, path.read_bytes(), os.stat(path), entries)  # type: ignore[arg-type]
    with open(path, "rb") as file:
        assert read(saved, file) == entries
    os.chown(path, pwd.getpwnam("daemon").pw_uid, -1)
    with open(path, "rb") as file:
        assert read(saved, file) is None
    assert load_manifest(path).entries["a"].user == "daemon"


def test_a_manifest_that_is_made_again_keeps_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    entries = [{"job_id": job, "method": "m"} for job in ("old", "hers", "new")]
    assert {one["user"] for one in with_owners(entries, "bob", path)} == {"bob"}
    path.write_text(json.dumps([entries[0], {**entries[1], "user": "ada"}]))
    given = [*entries, {"job_id": "given", "method": "m", "user": "eve"}]
    assert [one["user"] for one in with_owners(given, "bob", path)] == [ME, "ada", "bob", "eve"]
    path.write_text("{")
    assert {one["user"] for one in with_owners(entries, "bob", path)} == {"bob"}


@pytest.mark.parametrize("name", ["ada", "ada.l-2", "LAB\\ada", "ada@lab.example", "_apt", "12345", "zoë"])
def test_names_of_users(name: str) -> None:
    assert parse_user(name) == name
    assert user_of(f"{name}@desk") == name and owner_by(f"{name}@desk") == name


@pytest.mark.parametrize("value", ["", "a b", "a,b", "a*", "[a]", "a\nb", 5, None, "-a", "a" * 300])
def test_what_is_no_name_of_a_user(value: object) -> None:
    with pytest.raises(BadValueError, match="the name of a user, such as ada"):
        parse_user(value)
    _, faults = read_entry({"job_id": "a", "method": "m", "user": value}, 0)
    assert bool(faults) is (value is not None)


def test_a_login_that_is_no_name_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada, and bob")
    monkeypatch.setenv("USER", "")
    assert user_name() == ME
    assert user_of("gpu-a") is None and owner_by("nightly") == ME
