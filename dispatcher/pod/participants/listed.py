"""The participants of a pod, in the order in which they take part in each step of a pass."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.pod.backlog import Backlog
from dispatcher.pod.participant import End, Participant, Shared
from dispatcher.pod.participants.adding import Adding
from dispatcher.pod.participants.claims import Claims
from dispatcher.pod.participants.code_copies import CodeCopies
from dispatcher.pod.participants.desired import Desired
from dispatcher.pod.participants.ends import Ends
from dispatcher.pod.participants.external_jobs import ExternalJobs
from dispatcher.pod.participants.failures import Failures
from dispatcher.pod.participants.gpu_idle import IdleGpus
from dispatcher.pod.participants.notices import Notices
from dispatcher.pod.participants.orphans import Orphans
from dispatcher.pod.participants.pauses import Pauses
from dispatcher.pod.participants.placements import Placements
from dispatcher.pod.participants.queue_limits import QueueLimits
from dispatcher.pod.participants.running_limits import RunningLimits
from dispatcher.pod.participants.saving import Saver
from dispatcher.pod.participants.script import Script
from dispatcher.pod.participants.status_problem import StatusProblem
from dispatcher.pod.participants.storage import StoragePause
from dispatcher.pod.participants.tally import Tally
from dispatcher.pod.participants.unmet import UnmetOptions
from dispatcher.pod.recording import Recorder
from dispatcher.run_state.store import Transaction


class Participants(NamedTuple):
    """`all` of them, and those that the end of a pod asks by name."""

    all: tuple[Participant, ...]
    adding: Adding
    claims: Claims
    orphans: Orphans
    script: Script
    tally: Tally


def participants_of(shared: Shared, backlog: Backlog) -> Participants:
    def after_end(tx: Transaction, end: End) -> None:
        for one in everyone:
            one.after_end(tx, end)

    recorder = Recorder(shared, backlog, after_end)
    ends = Ends(shared, recorder)
    orphans = Orphans(shared, recorder, ends.on_disk)
    copies = CodeCopies(shared, backlog)
    adding = Adding(shared, backlog)
    claims = Claims(shared, backlog, orphans.adopt, copies.use)
    script = Script(shared)
    tally = Tally()
    everyone = (
        tally,
        Placements(shared, recorder),
        ends,
        StoragePause(shared, backlog),
        copies,
        RunningLimits(shared, backlog),
        orphans,
        QueueLimits(shared, backlog),
        Desired(shared),
        IdleGpus(shared, backlog),
        Pauses(shared, backlog),
        ExternalJobs(shared),
        script,
        Failures(shared, backlog),
        UnmetOptions(shared, backlog),
        StatusProblem(shared.store, shared.log),
        Notices(shared, backlog),
        Saver(shared.store),
        # What comes before must be in the queue when jobs are claimed.
        backlog,
        adding,
        claims,
        adding.rest,
    )
    return Participants(everyone, adding, claims, orphans, script, tally)
