"""The tiny training, interrupted before a step that its environment says."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tiny_training import Tiny

from dispatcher.runtime.registry import job

FILE = Path(__file__)


def signalled(step: int, number: int) -> dict[str, str]:
    """The environment of a training that sends itself a signal after `step` steps."""
    return {"INTERRUPTED_AFTER": str(step), "INTERRUPTED_BY": str(int(number))}


def waiting(step: int, path: Path) -> dict[str, str]:
    """The environment of a training that waits after `step` steps until `path` exists."""
    return {"INTERRUPTED_AFTER": str(step), "INTERRUPTED_UNTIL": str(path)}


@job("tests/interrupted")
class Interrupted(Tiny):
    """As `Tiny`, with `signalled` or `waiting` in its environment."""

    def run_block(self, *given: Any) -> Any:
        if os.environ.get("INTERRUPTED_AFTER") == str(self.steps_done):
            if "INTERRUPTED_BY" in os.environ:
                os.kill(os.getpid(), int(os.environ["INTERRUPTED_BY"]))
            else:
                while not Path(os.environ["INTERRUPTED_UNTIL"]).exists():
                    time.sleep(0.01)
        return super().run_block(*given)
