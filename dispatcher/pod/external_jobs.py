"""The external jobs that a pod has seen (started by something other than a dispatcher), and when to stop claiming."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dispatcher.config import Config
from dispatcher.run_state.external import external_gpus, runs_externally
from dispatcher.run_state.states import Record


class ExternalJobs:
    """`jobs` are running externally. `problem` is why this pod has stopped claiming; empty while it claims."""

    def __init__(self, config: Config, log: Callable[[str], None]) -> None:
        self.jobs: set[str] = set()
        self.problem = ""
        self._config = config
        self._log = log
        # All jobs that were external when this pod began or have become so since.
        self._known: set[str] = set()
        self._has_begun = False

    def update_all(self, records: Mapping[str, Record]) -> None:
        """Read all records. Jobs that are external the first time were adopted."""
        if self._has_begun:
            self.jobs &= records.keys()
            for job, record in records.items():
                self.update(job, record)
            return
        self._has_begun = True
        self.jobs = {job for job, record in records.items() if runs_externally(record)}
        self._known = {job for job, record in records.items() if record.external}

    def update(self, job: str, record: Record | None) -> None:
        """Update for a record that has changed."""
        if record is not None and runs_externally(record):
            self.jobs.add(job)
        else:
            self.jobs.discard(job)
        if record is None or not record.external:
            self._known.discard(job)
        elif job not in self._known:
            self._known.add(job)
            self._stop_claiming(job, record)

    def gpus(self, records: Mapping[str, Record]) -> dict[str, str]:
        """The GPUs of this host that external jobs use, by their scopes, each with the reason."""
        return external_gpus((job, records[job]) for job in self.jobs)

    def _stop_claiming(self, job: str, record: Record) -> None:
        """Stop claiming unless there is a shared lock: without one, a job could be started twice."""
        if self._config.script_lock is not None or self.problem:
            return
        self.problem = (
            f"{job} was claimed by {record.pod or 'a script'}, pid {record.pid}, which is not a dispatcher. Without a "
            "shared lock a job may be started twice, so this pod has stopped claiming. Name the file that the script "
            f"locks (`script_lock: FILE` in {self._config.layout.config_file.name}), or stop the script; "
            "then start this pod again"
        )
        self._log(f"warning: {self.problem}")
