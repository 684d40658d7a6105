"""Metrics to Weights & Biases, if `training.wandb` is set; only then is `wandb` imported.

All attempts of a job log to the same run: its id is kept in a file beside the job's results. W&B takes no step twice.
So what an attempt trains again after it was resumed is compared with what the run has. What is equal, speeds aside, is
not sent again. From the first line that differs (the training was rewound, its code or data has changed), the training
goes on in a new run.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher.base import files
from dispatcher.contract import SPEED
from dispatcher.errors import UsageError
from dispatcher.runtime.configuration import current_config, to_dict
from dispatcher.runtime.metrics import json_number

if TYPE_CHECKING:
    from dispatcher.runtime.execution import ExecutionSpec

_ID_FILE: Final = "wandb_id"
_SENT_FILE: Final = "wandb_sent.jsonl"

_log = logging.getLogger(__name__)


class WandbLog:
    """The job's run on Weights & Biases, as a sink of a MetricsLog. For process 0 only.

    wandb reads the account and the mode from the environment (`WANDB_API_KEY`, `WANDB_MODE`).
    """

    def __init__(self, spec: ExecutionSpec) -> None:
        try:
            self._wandb: Any = importlib.import_module("wandb")
        except ModuleNotFoundError as error:
            if error.name != "wandb":
                raise
            raise UsageError("training.wandb is set, but wandb is not installed: pip install wandb") from None
        self._spec = spec
        self._id_file = spec.result_path(_ID_FILE)
        identity = _run_id(self._id_file)
        self._sent = _Sent(spec.result_path(_SENT_FILE))
        self._run: Any = self._init(identity)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        line = {name: json_number(value) for name, value in metrics.items()}
        if step <= self._sent.last_step:
            if self._sent.has(step, line):
                return
            self._begin_anew(step)
        self._sent.append(step, line)
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Send pending metrics and end the run."""
        self._run.finish()

    def _init(self, identity: str) -> Any:
        config = current_config()
        return self._wandb.init(
            project=self._spec.project,
            group=self._spec.group,
            name=self._spec.name,
            id=identity,
            resume="allow",
            dir=str(self._id_file.parent),
            config=to_dict(config) if config is not None else {},
        )

    def _begin_anew(self, step: int) -> None:
        """Go on in a new run, which gets the lines before this step: W&B takes no step twice."""
        former, identity = self._id_file.read_text(encoding="ascii").strip(), _new_id()
        _log.warning(
            "step %d was trained anew, and W&B takes no step twice: run %s goes on from there as %s",
            step,
            former,
            identity,
        )
        self._run.finish()
        self._sent.keep_before(step)
        files.replace_file(self._id_file, identity.encode())
        self._run = self._init(identity)
        for kept, line in self._sent.lines():
            self._run.log({name: float(value) for name, value in line.items()}, step=kept)


class _Sent:
    """The lines that the run has, in a file beside its id, with which is compared what is trained again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Those of steps that may come again.
        self._expected: dict[int, Mapping[str, Any]] | None = None
        # The next line must not be appended to what a killed process or a power cut has left of one.
        self.keep_before(math.inf)

    def lines(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """All lines before the first that is damaged, which only the last ones can be."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.split("\n")[:-1]:
            try:
                step, metrics = json.loads(line)
            except ValueError:
                return
            yield step, metrics

    def has(self, step: int, line: Mapping[str, Any]) -> bool:
        """Whether the line of this step is this one, speeds aside."""
        if self._expected is None:
            self._expected = dict(self.lines())
        expected = self._expected.get(step)
        return expected is not None and _without_speeds(expected) == _without_speeds(line)

    def append(self, step: int, line: Mapping[str, Any]) -> None:
        self._expected = None
        self.last_step = step
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps([step, line], ensure_ascii=False) + "\n")

    def keep_before(self, step: float) -> None:
        """Remove the lines of this step and of later ones."""
        kept = [(at, line) for at, line in self.lines() if at < step]
        text = "".join(json.dumps([at, line], ensure_ascii=False) + "\n" for at, line in kept)
        files.replace_file(self._path, text.encode())
        self._expected = None
        self.last_step = max((at for at, _ in kept), default=-1)


def _without_speeds(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if not name.startswith(SPEED)}


def _new_id() -> str:
    return uuid.uuid4().hex[:16]


def _run_id(path: Path) -> str:
    """The id in `path`, or a new one that is stored there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = files.temporary_name(path)
    temporary.write_text(_new_id(), encoding="ascii")
    try:
        # A link appears with its content, and does not replace the id of a faster process.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return path.read_text(encoding="ascii").strip()
