"""Pods: how busy their GPUs were in the last hour, and who else uses them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from crowded import write_pod
from fleet import Fleet, shell

from dispatcher.run_state.gpu_hour import MINUTES, GpuHour, GpuUser, PodGpus, write_gpus
from dispatcher.run_state.liveness import SlotInfo


def test_the_last_hour_of_gpus_and_their_users(
    open_page: Callable[..., Any], fleet: Fleet, serve: Callable[..., Any]
) -> None:
    fleet.write_manifest([shell("a", "true")])
    fleet.run("hold", "a")
    gpu = {"outlet": "local", "gpu_name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81_920, "memory_used_mib": 1_024}
    slots = [SlotInfo(name="gpu0", busy_percent=97, **gpu), SlotInfo(name="gpu1", **gpu)]
    write_pod(fleet, "gpu-a", "running", slots)
    busy = GpuHour(
        [None] * 30 + [100] * 15 + [0] * 15, [None] * 30 + [40_960] * 30, [GpuUser(7, "<b>bob", "python", 2_048)]
    )
    hidden = GpuHour([None] * MINUTES, [1_024] * MINUTES, [], unnamed=2)
    write_gpus(fleet.layout, "gpu-a", PodGpus(int(time.time() // 60), {"gpu0": busy, "gpu1": hidden}))
    served = serve()
    page = open_page(served.link)
    page.goto(f"{served.base}/?view=pods")
    page.locator("tbody tr").first.wait_for()
    first, second = page.locator("tbody tr").all()
    sparks = first.locator("svg.spark").evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    assert sparks[0].startswith("gpu0: utilisation, last hour: mean 50 %, 0 % to 100 %, known for ")
    assert sparks[1].startswith("gpu0: memory, last hour: mean 40 GiB, 40 GiB to 40 GiB")
    assert first.locator("td").all_inner_texts()[3] == "97 %"
    # Half an hour is not known: the line begins in the middle.
    line = first.locator("svg.spark path.line").first.get_attribute("d")
    assert line.startswith("M") and 55 < float(line[1:].split(" ")[0]) <= 65
    assert "<b>bob 2.0 GiB python, pid 7" in first.inner_text()
    # With MIG nothing is claimed.
    assert second.locator("td").all_inner_texts()[3:5] == ["unknown", "unknown"]
    assert "2 processes that cannot be named" in second.inner_text()
