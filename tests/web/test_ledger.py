"""The week's account is made again when the journal has grown, and while a pod is alive: what runs takes time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from dispatcher.web import ledger as module
from dispatcher.web.ledger import Ledger


class FakeFollower:
    """Somebody looks, always."""

    def __init__(self, *, is_live):
        self.seq, self.is_live, self.parts = 1, is_live, []

    async def watched(self):
        pass

    async def put(self, name, value):
        self.parts.append((name, value))


def accounts(monkeypatch, *, is_live, until):
    """How many accounts were made when `until(follower)` holds, or half a second later."""
    for name in ("_LEAST_S", "_REST", "_OUTDATED_S"):
        monkeypatch.setattr(module, name, 0.05)

    async def main():
        follower = FakeFollower(is_live=is_live)
        ledger = Ledger(follower, Path("nowhere"))
        monkeypatch.setattr(ledger, "_read", lambda: asyncio.sleep(0, {"total": 1}))
        # It looks once a second otherwise.
        monkeypatch.setattr(module.asyncio, "sleep", quick_sleep)
        ledger.start()
        end_s = time.monotonic() + 0.5
        while not until(follower) and time.monotonic() < end_s:
            await quick_sleep(0.01)
        ledger.stop()
        return follower.parts

    real_sleep = asyncio.sleep

    def quick_sleep(seconds, result=None):
        return real_sleep(min(seconds, 0.02), result)

    return asyncio.run(main())


def test_what_runs_is_accounted_again_without_a_line_in_the_journal(monkeypatch):
    found = accounts(monkeypatch, is_live=True, until=lambda follower: len(follower.parts) >= 3)
    assert found[:3] == [("week", {"total": 1})] * 3


def test_a_workspace_at_rest_is_accounted_once(monkeypatch):
    assert len(accounts(monkeypatch, is_live=False, until=lambda _: False)) == 1


@pytest.mark.parametrize("program", ["/nowhere/python", "/dev/null"])
def test_an_account_that_cannot_be_made_says_so(monkeypatch, program):
    monkeypatch.setattr(module.sys, "executable", program)
    follower = FakeFollower(is_live=False)
    found = asyncio.run(Ledger(follower, Path("nowhere"))._read())
    assert "cannot be started" in found["error"]
