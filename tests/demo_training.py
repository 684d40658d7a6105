"""The demo's pretraining, as its template says it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from jobs.names import Pretrain

from dispatcher.runtime.execution import local
from dispatcher.runtime.launching import make_job

TEMPLATE = Path(__file__).parents[1] / "templates" / "train_pretrain.py"


def made(root: Any, **training: Any) -> Any:
    """The job with these words of `training` over those of the template."""
    template = runpy.run_path(str(TEMPLATE))
    config = template["config"](template["PARAMS"])
    config["training"] |= training
    return make_job(Pretrain, local(root, "demo"), config)
