"""Removing what nobody needs any more: `dispatcher clean`.

    tree        walking, measuring and removing below an open directory; follows no link, leaves no filesystem
    attempts    the content of old attempts
    blobs       differences, package lists and archives of the code that nothing refers to
    plan        what is to be removed, and what was; finding: which jobs and attempts may be looked at
    disk        bytes by what they are, for `usage --disk`

What is never removed:

1. Anything outside of `run_state/jobs/JOB/NUMBER/`, `run_state/provenance/` and `run_state/code/`. Every step below
   these is relative to an open directory and follows no symbolic link: a link is removed, what it names is not. No
   other filesystem is entered, and no attempt touched in which something is mounted. A directory whose name is no job
   id or no number, as the dispatcher writes them, is nobody's business here.
2. Anything of an attempt that may be running, or whose job may still want it: only jobs that are done, failed or
   abandoned count, and jobs whose records were deleted; of these never the last attempts, never the last that
   succeeded, nor (unless the job is done) the last that reported a checkpoint, nor one that the entry of a job names
   that has not ended. The liveness lock must be free. An attempt without `exit.json` (killed, lost, superseded) must
   have been silent for a day as well: a free lock does not prove on every filesystem that it is over.
3. The directory itself, and the small files that say what the attempt was (attempts.KEPT). So its number is never given
   again, a late wrapper finds `taken` or `superseded`, and `show`, `results`, `usage` and `diff` go on. `cleaned.json`
   says that the rest was removed; it is written before.
4. A blob or an archive to which an attempt's record, a job or a running attempt refers, or that was used within a day:
   one that is being written has no reference yet. If a reference cannot be read, no blob is removed.

No lock is needed beside running pods. An attempt that has ended never starts again, and its job's later attempts only
make it older, so what was to be removed stays so. A job that was queued again meanwhile is left alone nevertheless.
Several cleaners remove the same things, and what one finds gone the other has removed. One that is killed leaves the
rest for the next.
"""
