"""Event files for TensorBoard, a directory per run: scalars of metrics and results, hyper-parameters.

The events are those of TensorBoard's own protocol buffers. A file is complete or absent, and replaced as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dispatcher.base import files
from dispatcher.base.values import number_of, text_of
from dispatcher.query.export.marks import Mark, read_mark, write_mark
from dispatcher.query.export.runs import Run
from dispatcher.query.results.frames import library
from dispatcher.run_state.states import ENDED, State

# TensorBoard reads files with `tfevents` in their names.
EVENTS_FILE: Final = "events.out.tfevents.dispatcher"
MARK_FILE: Final = "dispatcher-export.json"
_STATUS: Final = {state.value: "STATUS_SUCCESS" if state is State.DONE else "STATUS_FAILURE" for state in ENDED}


class TensorBoardExport:
    """Writes runs below a directory."""

    def __init__(self, directory: str, workspace: str) -> None:
        self._directory = Path(directory)
        self._workspace = workspace
        self._events: Any = library("tensorboard.compat.proto.event_pb2", "an export to TensorBoard", "tensorboard")
        self._summaries: Any = library("tensorboard.compat.proto.summary_pb2", "an export to TensorBoard")
        self._records: Any = library("tensorboard.summary.writer.record_writer", "an export to TensorBoard")
        self._hparams: Any = library("tensorboard.plugins.hparams.metadata", "an export to TensorBoard")
        self._hparams_data: Any = library("tensorboard.plugins.hparams.plugin_data_pb2", "an export to TensorBoard")
        self._hparams_api: Any = library("tensorboard.plugins.hparams.api_pb2", "an export to TensorBoard")

    def export(self, run: Run) -> bool:
        """Write the run; whether there was anything new."""
        directory = self._directory / run.job_id
        known = read_mark(directory / MARK_FILE, self._workspace, run.job_id)
        path = directory / EVENTS_FILE
        if known is not None and known.fingerprint == run.fingerprint and path.exists():
            return False
        with files.storing("exporting to", path):
            directory.mkdir(parents=True, exist_ok=True)
            temporary = directory / ".dispatcher-export"
            with open(temporary, "wb") as file:
                writer = self._records.RecordWriter(file)
                for event in self._all(run):
                    writer.write(event.SerializeToString())
            os.replace(temporary, path)
        write_mark(directory / MARK_FILE, Mark(self._workspace, run.job_id, run.fingerprint))
        return True

    def close(self) -> None:
        """Every run is complete by itself."""

    def _all(self, run: Run) -> Iterator[Any]:
        yield self._events.Event(wall_time=run.begun_s, file_version="brain.Event:2")
        yield self._session_start(run)
        last_step, last_s = 0, run.begun_s
        for series in run.read_series():
            for step, value, at_s in zip(series.steps, series.values, run.wall_times(series), strict=True):
                yield self._scalar(series.metric, value, round(step), at_s)
                last_step, last_s = max(last_step, round(step)), max(last_s, at_s)
        for key, number in run.numbers.items():
            # A metric may have the same name.
            yield self._scalar(f"result/{key}", number, last_step, run.finished_s or last_s)
        if run.state in _STATUS:
            yield self._session_end(run, run.finished_s or last_s)

    def _scalar(self, tag: str, value: float, step: int, at_s: float) -> Any:
        scalar = self._summaries.Summary.Value(tag=tag, simple_value=value)
        return self._events.Event(wall_time=at_s, step=step, summary=self._summaries.Summary(value=[scalar]))

    def _session_start(self, run: Run) -> Any:
        info = self._hparams_data.SessionStartInfo(group_name=run.job_id, start_time_secs=run.begun_s)
        for key, value in {"method": run.method, **run.parameters}.items():
            if isinstance(value, bool):
                info.hparams[key].bool_value = value
            elif isinstance(value, (int, float)):
                info.hparams[key].number_value = number_of(value)
            elif value is not None:
                info.hparams[key].string_value = text_of(value)
        data = self._hparams_data.HParamsPluginData(session_start_info=info)
        return self._of_hparams(self._hparams.SESSION_START_INFO_TAG, data, run.begun_s)

    def _session_end(self, run: Run, at_s: float) -> Any:
        status = self._hparams_api.Status.Value(_STATUS[run.state])
        info = self._hparams_data.SessionEndInfo(status=status, end_time_secs=at_s)
        data = self._hparams_data.HParamsPluginData(session_end_info=info)
        return self._of_hparams(self._hparams.SESSION_END_INFO_TAG, data, at_s)

    def _of_hparams(self, tag: str, data: Any, at_s: float) -> Any:
        metadata = self._hparams.create_summary_metadata(data)
        # TensorBoard shows a summary that has a value.
        tensor = getattr(self._hparams, "NULL_TENSOR", None)
        value = self._summaries.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        return self._events.Event(wall_time=at_s, summary=self._summaries.Summary(value=[value]))
