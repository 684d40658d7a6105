"""The page: what it costs a pod, whom it refuses, and its pictures."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any, Final

from lab import Lab
from table import Table

# In which the page's server looks at least once.
_WINDOW_S: Final = 3.0
# What the page's script does while it is visible.
_EVERY_S: Final = 2.0
# Reads and writes of a pod differ by as much from one window to the next.
_TOLERANCE: Final = 0.15
# Of a core, for one viewer: docs/web.md has the exact figure.
_MOST_SHARE: Final = 0.1


def cost(lab: Lab, table: Table) -> None:
    """A pod costs the same with and without a viewer; the server of the page costs little while nothing changes."""
    pod = lab.pods["desk"].pid
    lab.close_web()
    alone = _calls(pod, _WINDOW_S)
    web, seen = lab.web, threading.Event()
    viewer = threading.Thread(target=_view, args=(lab, seen))
    viewer.start()
    time.sleep(_EVERY_S)
    before_s = _processor_s(web.process.pid)
    watched = _calls(pod, _WINDOW_S)
    share = (_processor_s(web.process.pid) - before_s) / _WINDOW_S
    seen.set()
    viewer.join()
    table.note(
        "reads and writes of a pod a second, without and with a viewer", "equal",
        f"{alone:.0f} and {watched:.0f}", abs(watched - alone) <= _TOLERANCE * alone,
    )  # fmt: skip
    table.note(
        "the page's server with one viewer, of a core", f"< {_MOST_SHARE:.0%}", f"{share:.1%}", share < _MOST_SHARE
    )


def _view(lab: Lab, is_over: threading.Event) -> None:
    """One viewer, as the page's script asks."""
    position = lab.web.get("/api/overview").json["position"]
    while not is_over.wait(_EVERY_S):
        position = lab.web.get(f"/api/changes?since={position}").json["position"]


def _calls(pid: int, seconds: float) -> float:
    """Reads and writes of a process, a second."""
    before = _reads_and_writes(pid)
    time.sleep(seconds)
    return (_reads_and_writes(pid) - before) / seconds


def _reads_and_writes(pid: int) -> int:
    lines = (line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return sum(int(count) for name, count in lines if name in ("syscr", "syscw"))


def _processor_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def refusals(lab: Lab, table: Table) -> None:
    """What strangers' pages and other accounts of the host try, as a browser would send it."""
    web, hold = lab.web, "/api/changes/hold"
    name = (web.cookie or web.log_in()).partition("=")[0]
    body = {"jobs": ["report"]}
    tries: dict[str, tuple[int, Any]] = {
        "without the link's token": (401, web.send("GET", "/api/overview")),
        "with another user's cookie": (401, web.send("GET", "/api/overview", {"Cookie": f"{name}={'x' * 43}"})),
        "with a wrong token": (401, web.send("GET", f"/login?token={'x' * 43}")),
        "from a rebound name (DNS)": (403, web.get("/api/overview", Host=f"evil.example:{web.port}")),
        "a change by a foreign page": (403, web.post(hold, body, Origin="http://evil.example")),
        "a change by a page of another port": (
            403, web.post(hold, body, Origin="http://127.0.0.1:1", **{"Sec-Fetch-Site": "same-site"}),
        ),
        "a change by a form": (403, web.post(hold, body, without=("X-Dispatcher-Request",))),
    }  # fmt: skip
    lines = len(lab.fleet.history())
    for what, (expected, answer) in tries.items():
        table.check(f"the page, {what}", answer.status, expected)
    table.check("the page, from its own link", web.get("/api/overview").status, 200)
    table.check("lines that the refused ones have left in the journal", len(lab.fleet.history()) - lines, 0)


def pictures(lab: Lab, table: Table, folder: Path) -> None:
    """Screenshots of the page, where there is a Chromium."""
    from chromium_here import CHROMIUM, launched

    if shutil.which(CHROMIUM) is None:
        table.note("pictures of the page", "two", "no Chromium here: left out", True)
        return
    link = f"http://{lab.web.host}/login?token={lab.web.token}"
    addresses = {"first.png": "/?rows=lang&columns=method&value=loss", "pods.png": "/?view=pods"}
    complaints: list[str] = []
    with launched() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(link)
        for name, address in addresses.items():
            page.goto(f"http://{lab.web.host}{address}")
            page.wait_for_selector("main section")
            page.wait_for_timeout(1_500)
            page.screenshot(path=folder / name)
    table.check("errors of the page in a real browser", complaints, [])
    taken = [name for name in addresses if (folder / name).stat().st_size > 10_000]
    table.check("pictures of the page", taken, list(addresses))
