"""`dispatcher submit` as a test types it."""

from __future__ import annotations

import json

from fleet import Fleet


def submit(fleet: Fleet, *words: str, status: int = 0) -> list[str]:
    done = fleet.try_("submit", *words)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout.split()


def fails(fleet: Fleet, *words: str, status: int = 2) -> str:
    done = fleet.try_("submit", *words)
    assert (done.returncode, done.stdout) == (status, ""), done.stdout + done.stderr
    return done.stderr


def written(fleet: Fleet) -> list[dict[str, object]]:
    return [json.loads(line) for line in fleet.layout.submitted_manifest.read_text().splitlines()]
