"""What people want of running attempts: to stop, or to be killed; and attempts that were taken over."""

from __future__ import annotations

from dispatcher.base import files
from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.pod.recording import is_current, is_forgotten


class Desired(Participant):
    """Stops what people want stopped, and kills what is no longer its job's current attempt."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def act(self, now: Pass) -> None:
        """Files are looked for only when the poll is due: thousands may be in flight, and each short job is a pass."""
        attempts, records = self._shared.attempts, self._shared.records
        for attempt in attempts:
            if attempt.ended is not None:
                continue
            job, number = attempt.key.job_id, attempt.key.number
            record = records.get(job)
            if record is not None and record.force and is_current(record, number):
                attempts.kill(attempt, record.rev)
            elif attempt.is_stopping:
                continue
            elif record is None or is_forgotten(record, number):
                # The journal has gone back: no pod has taken the job over. With its record comes its claim.
                if record is not None:
                    attempt.mark_forgotten()
            elif not is_current(record, number) or (now.poll_is_due and files.is_there(attempt.paths.superseded)):
                why = "is superseded" if is_current(record, number) else "was taken over by another pod"
                self._shared.log(f"{job} (attempt {number}) {why}: killing it")
                attempts.kill(attempt)
            elif record.desired is not None:
                attempts.stop([attempt])
