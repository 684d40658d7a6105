"""Metrics to Weights & Biases, for those who ask for it: only then is `wandb` imported.

A job that goes on in another attempt goes on in the same run there: its id is kept beside the job's results.
"""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher.base import files
from dispatcher.errors import UsageError
from dispatcher.runtime.configuration import current_config, to_dict

if TYPE_CHECKING:
    from dispatcher.runtime.execution import ExecutionSpec

_ID_FILE: Final = "wandb_id"


class WandbLog:
    """The job's run on Weights & Biases; a sink of a MetricsLog. For the first process only.

    The account and the mode (`WANDB_API_KEY`, `WANDB_MODE`) are wandb's own affair.
    """

    def __init__(self, spec: ExecutionSpec) -> None:
        try:
            wandb: Any = importlib.import_module("wandb")
        except ModuleNotFoundError as error:
            if error.name != "wandb":
                raise
            raise UsageError(
                "metrics are to go to Weights & Biases, but wandb is not installed: pip install wandb"
            ) from None
        config = current_config()
        id_file = spec.result_path(_ID_FILE)
        self._run: Any = wandb.init(
            project=spec.project,
            group=spec.group,
            name=spec.name,
            id=_kept_id(id_file),
            resume="allow",
            dir=str(id_file.parent),
            config=to_dict(config) if config is not None else {},
        )

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Send what is not sent yet."""
        self._run.finish()


def _kept_id(path: Path) -> str:
    """The id in `path`, or a new one that is kept there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = files.temporary_name(path)
    temporary.write_text(uuid.uuid4().hex[:16], encoding="ascii")
    try:
        # A link is there whole or not at all, and never replaces the id of somebody who was quicker.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return path.read_text(encoding="ascii").strip()
