"""Removing what is no longer needed: `dispatcher clean`.

    tree        walking, measuring and removing below an open directory; follows no link, leaves no filesystem
    attempts    the content of old attempts
    checkpoints those of job classes beyond their retention
    blobs       differences, package lists and archives of the code that nothing refers to
    plan        what is to be removed, and what was; finding: which jobs and attempts may be looked at
    disk        bytes by what they are, for `usage --disk`
    hosts       what attempts have left on the configured hosts, for `clean --hosts`

What is never removed:

1. Anything outside of `run_state/jobs/JOB/NUMBER/`, `run_state/provenance/`, `run_state/code/` and the directories in
   which jobs have saved checkpoints (see 5). Every step below these is relative to an open directory and follows no
   symbolic link: a link is removed, what it names is not. No other filesystem is entered, and no attempt touched in
   which something is mounted. A directory whose name is no job id or no number, as the dispatcher writes them, is
   nobody's business here.
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

5. Of checkpoints: the latest, what the job's own retention keeps (the best ones among it), those with a name of their
   own, damaged ones and those set aside. Which directory it is, the job's last attempt that committed one has reported
   (checkpoints/reported.py), and it must have the checkpoint that was reported, by the seal of its manifest: so it is
   no other host's and no copy that was made before. A directory is left alone if another job, a run by hand, or an
   attempt that this workspace does not know has saved there, if an attempt may be running, or if the entry of a job
   that has not ended has the job's id as a word anywhere. A save in progress is not listed; it may be removed when its
   process has released its lock and nothing was written for a day.

No lock is needed beside running pods. An attempt that has ended never starts again, and its job's later attempts only
make it older, so what was to be removed stays so. A job that was queued again meanwhile is left alone nevertheless.
A checkpoint is removed in its open directory, the manifest first: a job that saves under the same name meanwhile has
moved that directory away, and its own is another. Several cleaners remove the same things, and what one finds gone the
other has removed. One that is killed leaves the rest for the next.
"""
