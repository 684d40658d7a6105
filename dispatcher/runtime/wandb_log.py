"""Metrics to Weights & Biases, if `training.wandb` is set; only then is `wandb` imported.

All attempts of a job log to the same run: its id is kept in a file beside the job's results.
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
    """The job's run on Weights & Biases, as a sink of a MetricsLog. For process 0 only.

    wandb reads the account and the mode from the environment (`WANDB_API_KEY`, `WANDB_MODE`).
    """

    def __init__(self, spec: ExecutionSpec) -> None:
        try:
            wandb: Any = importlib.import_module("wandb")
        except ModuleNotFoundError as error:
            if error.name != "wandb":
                raise
            raise UsageError("training.wandb is set, but wandb is not installed: pip install wandb") from None
        config = current_config()
        id_file = spec.result_path(_ID_FILE)
        self._run: Any = wandb.init(
            project=spec.project,
            group=spec.group,
            name=spec.name,
            id=_run_id(id_file),
            resume="allow",
            dir=str(id_file.parent),
            config=to_dict(config) if config is not None else {},
        )

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Send pending metrics and end the run."""
        self._run.finish()


def _run_id(path: Path) -> str:
    """The id in `path`, or a new one that is stored there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = files.temporary_name(path)
    temporary.write_text(uuid.uuid4().hex[:16], encoding="ascii")
    try:
        # A link appears with its content, and does not replace the id of a faster process.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return path.read_text(encoding="ascii").strip()
