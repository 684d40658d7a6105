"""Adaptive sweeps: `dispatcher matrix tune`. Each trial is a job; what is tried next depends on what was found.

The journal is the only record of a study (facets/studies.py): its settings, the parameters of each trial, the values
of those that have ended. A tuner keeps nothing besides, so it may be killed at any moment, and several may run at once.
Pods know nothing of studies: a trial is a job that was submitted.

A step (tuner).
1. Read the journal. Trials whose job is done have a value in the `result.json` of that attempt; it is journalled, and
   counts for as long as this attempt is the job's last. So a study is built without the files.
2. As many trials are due as `parallel` and `trials` allow. Their parameters are suggested outside of the lock
   (sampling): a study in memory gets all earlier trials in the order of their numbers, and the sampler's randomness
   comes from the seed and the number of the trial. The same journal gives the same suggestions.
3. Under the lock: if another tuner has asked for a trial meanwhile, or the settings have changed, everything begins
   again at 1. Otherwise the entries, the records of the jobs and the parameters of the trials are written in one
   transaction: a trial exists as a whole or not at all, and each number once.

Halving (rungs, halving). Before 1, a tuner reads what the running trials have reported (rungs). At each rung it
decides under the lock, by the values that the journal has at that rung, and journals the decision. A trial that does
not go on gets the desired state `done`, which people cannot ask for: its pod, or another that finds that it is dead,
stops the attempt as for any other desired state, and records `pruned`. It has that state only in the attempt that was
judged; what has ended meanwhile has ended as it did.

What a trial is (trials) follows from the record of its job: a requeued, preempted or lost job remains the same trial.
A study that has other settings than its file (settings) gets a new version where trials before and after cannot be
compared; those that fit the new space count for the sampler (space).
"""
