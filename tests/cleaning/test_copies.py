"""`dispatcher clean` and copies of the code: what a job may run from stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet import Fleet, shell
from repositories import Repository

from dispatcher.cleaning.copies import remove, unused
from dispatcher.outlets.code import copies


def age(fleet: Fleet) -> None:
    for path in fleet.layout.code_dir.iterdir():
        os.utime(path, (0, 0))


def copies_of(fleet: Fleet) -> list[Path]:
    return sorted(path for path in fleet.layout.code_dir.iterdir() if path.is_dir())


def test_copies_that_no_record_names_are_removed_when_they_are_old(fleet: Fleet) -> None:
    repository = Repository(fleet.root)
    repository.write(".gitignore", "run_state/\nsaid/\nmatrix/\n")
    repository.write("code.txt", "one\n")
    repository.commit()
    fleet.write_manifest([shell("a", "cat code.txt", snapshot=True)])
    assert fleet.run_all().process.returncode == 0
    repository.write("code.txt", "two\n")
    fleet.run("requeue", "a")
    age(fleet)
    first = copies_of(fleet)
    # The one that the job will run is not extracted yet; the other one is young no more.
    listed = fleet.run("clean", "--blobs")
    assert listed.count(".kept") == 1 and len(first) == 1
    fleet.run("clean", "--blobs", "--yes")
    assert copies_of(fleet) == []
    assert fleet.run_all().process.returncode == 0
    assert fleet.output("a", 2) == "two\n"
    age(fleet)
    # The archive of the first one, which nothing refers to any more.
    assert fleet.run("clean", "--blobs").count(".tar") == 1
    fleet.run("clean", "--blobs", "--yes")
    # The job has ended, so no attempt runs its copy again; the archive is that of its last attempt.
    assert copies_of(fleet) == []
    assert len(list(fleet.layout.code_dir.glob("*.tar"))) == 1


def test_a_copy_that_is_kept_again_stays_and_a_second_cleaner_finds_nothing_wrong(fleet: Fleet) -> None:
    repository = Repository(fleet.root)
    repository.write(".gitignore", "run_state/\nsaid/\nmatrix/\n")
    repository.write("code.txt", "one\n")
    repository.commit()
    snapshot = copies.take(fleet.layout)
    copies.extract(fleet.layout, snapshot)
    age(fleet)
    (orphan,) = unused(fleet.layout, [], 0.0)
    errors: list[OSError] = []

    def removed(in_use: set[str]) -> int:
        return remove(fleet.layout, orphan, in_use, lambda _, error: errors.append(error)).files

    # Somebody has submitted jobs since the list was made; those are not in the records that were read.
    copies.take(fleet.layout)
    assert removed(set()) == 0 and copies.kept(fleet.layout, snapshot.label) == snapshot
    age(fleet)
    assert removed({snapshot.label}) == 0
    assert removed(set()) >= 2 and copies_of(fleet) == []
    assert removed(set()) == 0 and errors == []
    assert [path.suffix for path in fleet.layout.code_dir.iterdir() if path.suffix not in {".tar", ".json"}] == []


class _KilledError(BaseException):
    pass


def test_a_cleaner_that_was_killed_leaves_no_directory_that_nobody_finds(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(fleet.root)
    repository.write(".gitignore", "run_state/\nsaid/\nmatrix/\n")
    repository.write("code.txt", "one\n")
    repository.commit()
    fleet.write_manifest([])
    kills = 0
    while True:
        copies.extract(fleet.layout, copies.take(fleet.layout))
        age(fleet)
        left = kills
        with monkeypatch.context() as patch:

            def counted(function: Callable[..., None]) -> Callable[..., None]:
                def call(*words: object) -> None:
                    nonlocal left
                    if not left:
                        raise _KilledError
                    left -= 1
                    function(*words)

                return call

            patch.setattr(os, "rename", counted(os.rename))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            (orphan,) = unused(fleet.layout, [], 0.0)
            try:
                remove(fleet.layout, orphan, set(), lambda *_: None)
            except _KilledError:
                kills += 1
            else:
                break
        for _ in range(2):
            # The second time for the archive, which the copy still needed.
            fleet.run("clean", "--blobs", "--yes")
        assert copies_of(fleet) == []
        assert [path.name for path in fleet.layout.code_dir.iterdir() if "kept" in path.name] == []
    assert kills == 3
