"""Checks of the host itself: programs, processes, GPUs. `checks.CHECKS` lists them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Final

from dispatcher.base import host
from dispatcher.doctor.context import Context
from dispatcher.doctor.findings import OK, WARNING, WRONG, Finding, Findings
from dispatcher.doctor.fitness import Fault, check_bash, check_processes
from dispatcher.outlets.local import nvml

_NVML_TIMEOUT_S: Final = 60.0


def python(_: Context) -> Findings:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", OK, f"{version} at {sys.executable}")


def bash(_: Context) -> Findings:
    found = check_bash()
    yield Finding("bash", WRONG, found.what, found.cure) if isinstance(found, Fault) else Finding("bash", OK, found)


def flock_program(_: Context) -> Findings:
    path = shutil.which("flock")
    if path:
        yield Finding("flock program", OK, path)
    else:
        what = "not found: job.sh cannot be run by hand; dispatchers do not need it"
        yield Finding("flock program", WARNING, what, "install util-linux")


def processes(_: Context) -> Findings:
    fault = check_processes()
    if fault is not None:
        yield Finding("processes", WRONG, fault.what, fault.cure)
        return
    is_first = host.pid_namespace() == host.FIRST_PID_NAMESPACE
    what = "the host's own" if is_first else f"those of PID namespace {host.pid_namespace()} (a container)"
    yield Finding("processes", OK, what)


def gpus(_: Context) -> Findings:
    # In a process of its own, because a driver that hangs would hang this one.
    try:
        done = subprocess.run(
            [sys.executable, nvml.__file__],
            input="",
            capture_output=True,
            text=True,
            timeout=_NVML_TIMEOUT_S,
            check=False,
        )
        answer = json.loads(done.stdout.partition("\n")[0] or "{}")
    except subprocess.TimeoutExpired:
        what = f"the NVIDIA driver has not answered for {_NVML_TIMEOUT_S:.0f} s"
        yield Finding("gpus", WRONG, what, "see nvidia-smi")
        return
    if "count" in answer:
        yield Finding("gpus", OK, f"{answer['count']} seen through NVML")
    else:
        why = answer.get("unavailable", done.stderr.strip()[-200:])
        yield Finding("gpus", WARNING if shutil.which("nvidia-smi") else OK, f"none: {why}")
