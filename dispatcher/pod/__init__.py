"""The dispatcher itself: the loop that keeps the attempts of one pod and the run state in step.

The pass. What a pod does is divided into concerns, and each is one participant, a class in participants/. A pass is a
loop over them: each looks and acts outside the lock, records in one transaction what is news, and then commits, or
rolls back when the transaction has failed. participant.py has the steps and all that a participant may answer, and
participants/listed.py the order. The pass names no concern. A dry run is the same pass: its participants do not act,
its store changes only memory, and its transaction is rolled back.

What the order guarantees: what an attempt left is on the disk before its end is recorded (ends_on_disk). Ends are
recorded, and the queue follows them, before jobs are claimed. A claim passes the fence inside the transaction, and is
started when it is in the journal. Lines for people are logged when what they say is in the journal.

The loop
  run               Set-up, one step after the other, the signals, the end.
  trusted_locks     Before the first transaction: the pod's name is taken, and a lock is found that excludes.
  wake              Waiting for a descriptor, a signal, a changed file or the time.
  reconciler        The pass; participant: what takes part in it; participants/: the concerns.
  rehearsal         `--dry-run`: what a start would do.
  reporting         The pod's file, its first and last lines, its exit code.
  lasting_fault     What a pod says of steps that fail again and again.
  current_config    The configuration in force; dispatcher.yaml may change while the pod runs.
  options           The command-line options of a pod.
  registration      The pod's name and its file, with the heartbeat; session: the same in the journal.
  short_lived       Pods that end at once, as those of `submit`.

Attempts
  running_attempts  The attempts in flight, wherever they run: watched, stopped, collected.
  starting          Rendering what was claimed and submitting it to its outlet.
  recording         Placements and ends, in a transaction; placements: what of them a record lacks (pure).
  ends_on_disk      Ends wait until the files of the attempt are on the disk.
  outcome           Why an attempt ended, and what becomes of its job; error_line: the telling line of its log (pure).
  recover           How attempts of dead dispatchers are; pod_outlets: the outlets of a pod, and those made for these.
  unknown           Which attempts their outlets cannot tell about, why, and since when.

Claims
  backlog           The manifest in force and the queue of its entries, kept in step with the records.
  current_manifest  The manifest in force; startable: which of its entries can be started at all.
  claim             The queue: which entries for which slots, now (pure); ready: which are ready, in which order (pure).
  breaker           Which failures pause what (pure).
  in_flight         How many attempts of all pods are in flight in each group that is limited (pure).
  needed_copies     The copies of the code without which jobs are not ready (pure).
  placing           Which outlets, in which order (pure).
  pack              Jobs that share a slot and run one after the other.
  fence             Numbers and directories of attempts, and what blocks a claim.
  offers            What a pod takes; waiting: why a job is not claimed (pure).

Nothing here names an outlet: see dispatcher/outlets.

Where an attempt runs is recorded with the next transaction, at the latest 20 ms after its start: a claim costs one sync
of the disk, not two. Until then the liveness lock, which is locked before the wrapper starts, shows that the attempt
lives.
"""
