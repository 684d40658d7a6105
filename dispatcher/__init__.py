"""dispatcher: a matrix of training runs over the GPUs of a few hosts that share one directory.

The whole protocol on one page. Somebody who has read it can predict the code.

A workspace is a directory that several hosts see. `matrix/` says what to run: a manifest is a list of entries, each a
job id, a method and parameters. `run_state/` says what happened. Nothing else is shared: no server, no database.

A dispatcher (a pod: a name, a host, some slots) goes round one loop (pod/run.py):

    what has ended?                     outlet.poll, which asks for all attempts in flight at once
    one transaction:                    under the lock, and only this
        record how those ended
        choose entries for the free slots, and claim them
    start each                          outlet.submit, never under the lock
    wait                                until a wrapper ends, a signal comes, a file changes, or time is up

A claim is two fences. The first is a transaction on the journal: take the lock, read what others appended, append,
sync, release (run_state/__init__.py tells it step by step). The second is `mkdir` of the attempt's directory inside
that transaction, which has one winner on every filesystem, also where locks lie. A record goes from queued to running
to done or failed by one table (run_state/states.py); anything else raises.

An attempt is a directory, `run_state/jobs/<job_id>/<attempt>/`, and a wrapper, a bash script that leads a process
group. The directory's `entry.json` is what the attempt runs with: tables join with it, never with today's manifest.
The dispatcher locks the file `alive` in that directory and lets the wrapper inherit the lock, so every process of the
tree holds it: the lock is free when nothing of the tree is left, and any host can ask. The wrapper passes TERM and INT
on, keeps the time limit, stops when it finds the file `superseded`, and writes `exit.json` before the lock is free. So
a dispatcher may die at any moment: its jobs run on, one that starts under its name finds them again, and until then
any other dispatcher records how they ended. A free lock without an exit status means that the attempt was killed
outright: it is lost and goes back to the queue, after a pause that grows until an attempt gets further.

People read and edit `matrix_status.json`, the projection of the journal. A line that differs from the record of the
same `rev` is an edit and is taken in by the next transaction; a line that is merely old changes nothing. On a running
entry `queued`, `held` or `abandoned` becomes a wish: its dispatcher stops the attempt, and then it takes that state.

Trust is proved. A starting dispatcher tries to take the liveness locks of the others; one that it gets although that
pod's heartbeat goes on rising shows that locks do not exclude here: then all go over to a lock made of hard links, or
it refuses to start. It also looks for what the pods of other hosts say that they have written: lines of the journal,
directories of attempts. A host that is shown less of the journal than the lock file promises stops and says which mount
option helps. Whoever takes an entry from an attempt that may still live leaves `superseded` behind first.

Where the code differs from what its parts are called elsewhere, the package of that part says so: run_state (files
and locks), pod (loop, slots, recovery), outlets (where attempts run), templates (what they are started from), matrix
(what there is to run), report and cli (what a person sees), runtime (what runs inside a job).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.errors import DispatcherError

__all__ = ["DispatcherError", "Workspace"]

# Imported when used: code inside a job imports dispatcher.contract and must not pay for the rest.
_PUBLIC = {"Workspace": "dispatcher.api", "DispatcherError": "dispatcher.errors"}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
