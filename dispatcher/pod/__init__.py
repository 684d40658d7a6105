"""The dispatcher itself: the one place where claims meet outlets.

run: set-up, the loop, signals, the end. turn: what happens between two waits: one transaction and what follows from it.
recording: what such a transaction says of attempts. current_manifest: the entries in force.
manifests: the ids of all manifests, for hand edits. complaint: what is wrong with the status file, said once.
claim: which entries for which slots, now (pure). offers: what a pod takes; waiting: why a job is not claimed (pure).
startable: what of the manifest can be started at all.
dry_run: what a start would do. slots, gpus, gpu_users, gpu_pool: what a pod has, and what is wrong
with it. launch: what an attempt finds in its directory. limits: what it may
take. flights: attempts in flight. outcome: how they ended and what becomes of the entry; error_line: what their logs
say of it (pure). fence: numbers and directories of attempts, and what blocks a claim. recover: attempts of
dead dispatchers. register: the pod's name and heartbeat. prove: whether locks lock. unwatched,
script_lock: what a lab's own script runs, and the lock shared with it. wake: waiting.

The pid of a wrapper is recorded with the next transaction, at the latest 20 ms later: a claim costs one sync of the
disk, not two. Until then the liveness lock, which is locked before the wrapper starts, says that the attempt lives.
"""
