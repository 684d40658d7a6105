"""Files that were damaged from outside: `status` says so, with the same cure as what changes something."""

from __future__ import annotations

import os

from fleet import Fleet


def test_a_journal_that_was_cut(fleet: Fleet) -> None:
    fleet.write_config("")
    fleet.run("submit", "--", "true")
    fleet.run("submit", "--", "true")
    assert "bytes" not in fleet.try_("status").stderr
    journal = fleet.layout.journal(1)
    os.truncate(journal, journal.stat().st_size - 20)
    refused = fleet.try_("submit", "--", "true").stderr.removeprefix("dispatcher: ")
    assert "or the file was cut. Cure: " in refused
    shown = fleet.try_("status").stderr
    assert " ".join(refused.split()) in " ".join(shown.split())


def test_a_manifest_that_is_a_link_to_itself(fleet: Fleet) -> None:
    fleet.write_config("")
    fleet.run("submit", "--", "true")
    manifest = fleet.write_manifest([])
    manifest.unlink()
    manifest.symlink_to(manifest.name)
    assert "Too many levels of symbolic links" in fleet.try_("status").stderr
