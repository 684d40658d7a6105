"""The dispatcher itself: the loop that keeps the attempts of one pod and the run state in step.

The loop
  run               Set-up, one step after the other, the signals, the end.
  trusted_locks     Before the first transaction: the pod's name is taken, and a lock is found that excludes.
  wake              Waiting for a descriptor, a signal, a changed file or the time.
  reconciler        One pass: record what has ended and claim what comes next in one transaction, then start it.
  lasting_fault     What is said of steps that fail again and again; summary: of what runs and of what was done.
  current_config    The configuration in force; dispatcher.yaml may change while the pod runs.
  options           The command-line options of a pod.
  notices           What the pod tells people beside its loop and before it ends; stalled: which of its attempts have.
  registration      The pod's name and its file, with the heartbeat; saving: a long journal's fold, saved in a thread.

Attempts
  running_attempts  The attempts in flight, wherever they run: watched, stopped, collected.
  starting          Rendering what was claimed and submitting it to its outlet.
  recording         Placements, ends, and what follows from a failure, in a transaction.
  queue_limits      Attempts that wait too long in an outlet's queue.
  outcome           Why an attempt ended, and what becomes of its job; error_line: the telling line of its log (pure).
  breaker           What is not claimed any more because job after job has failed (pure).
  failures          Jobs that have failed for good, where the pod is to stop for so many (pure).
  recover           Attempts of dead dispatchers; pod_outlets: the outlets that a pod has, and those made for these.
  gpu_idle          Which attempts leave their GPUs idle: what is recorded of it, and which are stopped.
  unknown           Which attempts their outlets cannot tell about, why, and since when.

Claims
  backlog           The manifest in force and the queue of its entries, kept in step with the records.
  current_manifest  The manifest in force; startable: which of its entries can be started at all.
  claim             The queue: which entries for which slots, now (pure); ready: which are ready, in which order (pure).
  in_flight         How many attempts of all pods are in flight in each group that is limited (`max_running`).
  needed_copies     The copies of the code without which jobs are not ready (pure); code_copies: taken off the loop.
  unmet             Options that match no job of the manifest.
  placing           Which outlets, in which order (pure).
  pack              Jobs that share a slot and run one after the other.
  claiming          Claims inside a transaction; fence: numbers and directories of attempts, and what blocks a claim.
  offers            What a pod takes; waiting: why a job is not claimed (pure).
  dry_run           What a start would do.
  external_jobs     Jobs that a lab's own script runs; script_lock: the lock shared with it.
  status_problem    Reports what is wrong with the status file, once.

Nothing here names an outlet: see dispatcher/outlets.

Where an attempt runs is recorded with the next transaction, at the latest 20 ms after its start: a claim costs one sync
of the disk, not two. Until then the liveness lock, which is locked before the wrapper starts, shows that the attempt
lives.
"""
