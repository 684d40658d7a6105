"""What somebody outside runs, as one pod has seen it, and when that is a reason to claim nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dispatcher.config import Config
from dispatcher.run_state.external import external_gpus, is_unwatched
from dispatcher.run_state.states import Record


class Unwatched:
    """`jobs` run outside. `complaint` says why this pod claims nothing any more: a script claims without its lock."""

    def __init__(self, config: Config, say: Callable[[str], None]) -> None:
        self.jobs: set[str] = set()
        self.complaint = ""
        self._config = config
        self._say = say
        # All that ran outside when this pod began, or was claimed there since.
        self._known: set[str] = set()
        self._has_begun = False

    def look_at_all(self, records: Mapping[str, Record]) -> None:
        """Look at all records; what runs outside at the first look was adopted."""
        if self._has_begun:
            self.jobs &= records.keys()
            for job, record in records.items():
                self.update(job, record)
            return
        self._has_begun = True
        self.jobs = {job for job, record in records.items() if is_unwatched(record)}
        self._known = {job for job, record in records.items() if record.external}

    def update(self, job: str, record: Record | None) -> None:
        """A record has changed."""
        if record is not None and is_unwatched(record):
            self.jobs.add(job)
        else:
            self.jobs.discard(job)
        if record is None or not record.external:
            self._known.discard(job)
        elif job not in self._known:
            self._known.add(job)
            self._doubt(job, record)

    def external_gpus(self, records: Mapping[str, Record]) -> dict[int, str]:
        """The GPUs of this host on which something runs that nobody watches, and why nothing else may."""
        return external_gpus((job, records[job]) for job in self.jobs)

    def _doubt(self, job: str, record: Record) -> None:
        """Somebody claims while dispatchers do: only with one lock for both nothing is started twice."""
        if self._config.script_lock is not None or self.complaint:
            return
        self.complaint = (
            f"{job} was claimed by {record.pod or 'somebody'}, pid {record.pid}, who is no dispatcher. Without a lock "
            "that both take, an entry may be started twice, so this pod claims nothing any more. Name the file that "
            f"the script locks (`script_lock: FILE` in {self._config.layout.config_file.name}), or stop the script; "
            "then start this pod again"
        )
        self._say(f"warning: {self.complaint}")
