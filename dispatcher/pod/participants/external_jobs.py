"""The external jobs (started by something other than a dispatcher), and when a pod claims nothing because of them."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.errors import StorageError
from dispatcher.pod.participant import Obstacle, Participant, Pass, Shared
from dispatcher.run_state.adoption import ignored_file_text
from dispatcher.run_state.external import external_gpus, runs_externally
from dispatcher.run_state.states import Record


class ExternalJobs(Participant):
    """Keeps the pod off the GPUs of external jobs, and from claiming where one could start twice."""

    def __init__(self, shared: Shared) -> None:
        config, options = shared.config.now, shared.options
        self._jobs: set[str] = set()
        self._config = config
        # Those beside which a lab's own status file may be.
        self._manifests = (config.matrix, options.matrix or config.matrix)
        self._log = shared.log
        self._anyway = options.anyway
        self._shared = shared
        # Of a claim that was seen in the status file, and of a status file that no dispatcher reads.
        self._claimed = ""
        self._ignored = ""
        # All jobs that were external when this pod began or have become so since.
        self._known: set[str] = set()
        self._has_begun = False

    def look(self, now: Pass) -> None:
        """Find out whether a script writes a status file that no dispatcher reads, and so claims the same jobs."""
        if self._anyway or not now.claiming:
            return
        try:
            found = ignored_file_text(self._config.layout, self._manifests)
        except StorageError as error:
            # Ends of this pod's attempts are recorded all the same.
            found = f"it cannot be told whether a script claims the same jobs: {error}"
        if bool(found) != bool(self._ignored):
            self._log(f"warning: nothing is claimed: {found}" if found else "claiming again: that file is gone")
        self._ignored = found

    def may_claim(self) -> bool:
        return not (self._claimed or self._ignored)

    def obstacle(self) -> Obstacle | None:
        problem = self._claimed or self._ignored
        return Obstacle(problem, is_final=True) if problem else None

    def notes(self) -> list[str]:
        return [problem] if (problem := self._claimed or self._ignored) else []

    def note_all(self) -> None:
        """Jobs that are external the first time were adopted."""
        records = self._shared.records
        if self._has_begun:
            self._jobs &= records.keys()
            for job, record in records.items():
                self.note(job, record)
            return
        self._has_begun = True
        self._jobs = {job for job, record in records.items() if runs_externally(record)}
        self._known = {job for job, record in records.items() if record.external}

    def note(self, job: str, record: Record | None) -> None:
        if record is not None and runs_externally(record):
            self._jobs.add(job)
        else:
            self._jobs.discard(job)
        if record is None or not record.external:
            self._known.discard(job)
        elif job not in self._known:
            self._known.add(job)
            self._stop_claiming(job, record)

    def held(self) -> Mapping[str, str]:
        """The GPUs of this host that external jobs use."""
        records = self._shared.records
        return external_gpus((job, records[job]) for job in self._jobs)

    def _stop_claiming(self, job: str, record: Record) -> None:
        """Stop claiming unless there is a shared lock: without one, a job could be started twice."""
        if self._config.script_lock is not None or self._claimed:
            return
        self._claimed = (
            f"{job} was claimed by {record.pod or 'a script'}, pid {record.pid}, which is not a dispatcher. Without a "
            "shared lock a job may be started twice, so this pod has stopped claiming. Name the file that the script "
            f"locks (`script_lock: FILE` in {self._config.layout.config_file.name}), or stop the script; "
            "then start this pod again"
        )
        self._log(f"warning: {self._claimed}")
