"""Telling people: which notices are due, who sends them, and what became of them.

The journal decides. What is told of is either a line that it has anyway (a job failed for good, a pause, idle GPUs), or
an incident: the first pod that sees one (conditions) writes a line when it began and when it is over. The fold collects
from these lines, for each target, what it was not told yet, by cause (run_state/facets/notices). So all pods know the
same, also those that were started later and after a new generation of the journal, and nothing is looked for twice.
What happened before a target was made known, by the line `notifying` of the first pod with it, is old.

When something is due (schedule: the delay that bundles, quiet time, the cap per hour), a pod claims it under the lock:
the line `notice_claimed` takes everything that is pending, and no other pod sends it. After the transaction a child
sends it (process, child, channels) with a deadline; the loop waits for nothing. How it went is journalled:

    sent       the other side has taken it
    failed     the other side has not: any pod tries again, a few times, later and later
    doubtful   may have arrived: the sender died, or there was no answer after the notice was out. It is never sent
               again, and shown until a person dismisses it

While a notice to a target is under way or to be tried again, what happens meanwhile is kept for the next one.

  notifier     One step: collect, claim, send, record. For the loop of a pod, and for `dispatcher notify --once`.
  conditions   What no line of the journal says by itself.
  schedule     When a target is told (pure).
  text         The notice in words and as JSON.
  process      The child, seen from outside; child: from inside; channels/: one module for each way.
  checks       What is refused at the start. Secrets are in files that only their owner can read (base/secrets.py).

`dispatcher/notify_config.py` reads the settings. A new way to tell: its struct and a field of Target there, a module in
channels/, its line in child.py, its checks in checks.py.
"""
