"""The account of the last week: `dispatcher usage`, run as a command.

It reads the whole journal, which takes seconds for 100,000 jobs. So it is a program of its own, which leaves the other
cores and this one's memory to the page, and runs only while a page is open, when something has changed, and for a small
share of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

from dispatcher.web.follower import Follower

# Today, and the days before it.
_DAYS: Final = 7
_ROWS: Final = 20
_DEADLINE_S: Final = 120.0
# It runs at most so often, and so many times as long as it took nothing is done.
_LEAST_S: Final = 60.0
_REST: Final = 30
# What runs takes time without a line in the journal.
_OUTDATED_S: Final = 300.0


class Ledger:
    """Puts the account of the last week on the first screen as the part `week`."""

    def __init__(self, follower: Follower, root: Path) -> None:
        self._follower = follower
        self._root = root
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _keep(self) -> None:
        seen: object = None
        read_s = -math.inf
        while True:
            await self._follower.watched()
            now = self._follower.seq
            rest_s = 1.0
            is_outdated = self._follower.is_live and time.monotonic() - read_s > _OUTDATED_S
            if now is not None and (now != seen or is_outdated):
                began_s = read_s = time.monotonic()
                found = await self._read()
                seen = now
                rest_s = max(_LEAST_S, _REST * (time.monotonic() - began_s))
                await self._follower.put("week", found)
            await asyncio.sleep(rest_s)

    async def _read(self) -> dict[str, Any]:
        """The account as `dispatcher usage --json` prints it, or why there is none."""
        days = _last_days(date.today())
        command = [sys.executable, "-P", "-m", "dispatcher", "usage"]
        options = ["--root", str(self._root), "--since", days[0], "--by", "day,method", "--json"]
        try:
            process = await asyncio.create_subprocess_exec(
                *command, *options,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")},
            )  # fmt: skip
        except OSError as error:
            return {"error": f"`dispatcher usage` cannot be started: {error.strerror}"}
        try:
            out, told = await asyncio.wait_for(process.communicate(), _DEADLINE_S)
        except TimeoutError:
            return {"error": f"`dispatcher usage` took longer than {_DEADLINE_S:.0f} s"}
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                # Nothing of it is left when the server has ended.
                await process.wait()
        if process.returncode:
            return {"error": told.decode("utf-8", "replace").strip()[-1000:]}
        return _account(out, told, days)


def _last_days(today: date) -> list[str]:
    return [(today - timedelta(days=before)).isoformat() for before in reversed(range(_DAYS))]


def _account(out: bytes, told: bytes, days: list[str]) -> dict[str, Any]:
    """What the first screen shows of it: the sums, by day, and by method those that took most."""
    found = json.loads(out)
    methods, of_days = _summed(found["rows"], "method"), _summed(found["rows"], "day")
    largest = sorted(methods.items(), key=lambda pair: -pair[1]["total"]["slots"])[:_ROWS]
    notes = [line.removeprefix("note: ") for line in told.decode("utf-8", "replace").splitlines()][:5]
    return {
        "until": found["until"],
        "total": found["total"],
        "days": [{"day": day, "hours": of_days.get(day, {})} for day in days],
        "rows": [{"values": {"method": method}, "hours": hours} for method, hours in largest],
        "notes": notes,
    }


def _summed(rows: Iterable[dict[str, Any]], key: str) -> dict[Any, dict[str, dict[str, float]]]:
    """The hours of each kind of time, by the values of a key."""
    sums: dict[Any, dict[str, dict[str, float]]] = {}
    for row in rows:
        of = sums.setdefault(row["values"][key], {})
        for kind, hours in row["hours"].items():
            known = of.get(kind, {})
            of[kind] = {unit: known.get(unit, 0.0) + number for unit, number in hours.items()}
    return sums
