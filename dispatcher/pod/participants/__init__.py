"""The concerns of a pod, one module each; listed.py has their order. See dispatcher/pod/participant.py for the pass.

Attempts
  placements      Where attempts run.
  ends            How they ended; tally counts it.
  orphans         Attempts of other pods, recorded when their dispatchers are dead.
  desired         Attempts that people want stopped, and those that were taken over.
  queue_limits    Attempts that wait too long in an outlet's queue.
  gpu_idle        Attempts that leave their GPUs idle.

Claims
  claims          Claimed, and started when that is in the journal.
  adding          New jobs that are queued in the transaction that claims them.
  running_limits  How many attempts may be in flight at once.
  code_copies     Copies of the code that jobs run.
  pauses          What is not claimed any more because job after job has failed.
  storage         A moment without claims after an attempt that the storage kept from starting.
  failures        So many failed jobs that the pod drains.
  external_jobs   Jobs that a lab's own script runs; script: the lock shared with it.
  unmet           Options that match no job of the manifest.

Beside both
  status_problem  The status file was edited, or cannot be read.
  notices         What people are told; stalled: which attempts have.
  saving          The journal is kept short, and its fold is saved.
"""
