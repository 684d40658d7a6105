"""Run a matrix of training jobs on the GPUs of a few hosts that share one directory.

This page describes the protocol, the packages, and where to make a change.

A workspace is a directory that all hosts mount. `matrix/` says what to run: a manifest is a JSON list with one entry
per job (a job id, a method, parameters). `run_state/` records what happened. The hosts share nothing else: there is no
server and no database. A pod is one running dispatcher: it has a name, a host, and slots, each with room for one
attempt. An attempt is one execution of a job. A record is what is known about a job now.

Jobs also come without a manifest: `dispatcher submit -- COMMAND` (submitting.py) appends entries to
`matrix/submitted.jsonl` (matrix/submitted.py) and their records to the journal, in one transaction. A line there counts
when its job's record says that it was submitted so (`ad_hoc`). A pod that reads of such a job for the first time looks
there for its entry.

The loop. Every pod runs the same loop (pod/run.py, pod/reconciler.py). Its concerns are participants, each with its
part in every step (pod/participant.py):

    poll the outlets                which attempts have ended? never blocks
    one transaction                 takes the lock, and only here
        record how attempts ended
        claim queued jobs for the free slots
    submit the claimed jobs         outside the lock, never waited for
    wait                            until a process ends, a signal arrives, a file changes, or the poll interval is over

The journal. `run_state/journal/` is an append-only list of changes, one JSON line each; a record is the fold of its
job's lines. A transaction takes the file lock, reads the lines that other pods have appended, appends its own, syncs,
and releases the lock. States change only as the table in run_state/states.py allows; anything else raises.
`matrix_status.json` is the projection of the journal, one line per record. People may edit it at any time: a line that
differs from the record of the same `rev` is an edit, and the next transaction applies or refuses it. Setting a running
job to `queued`, `held` or `abandoned` sets its desired state: its pod stops the attempt, and then the job takes that
state.

A claim is fenced twice: by the transaction, and by `mkdir` of the attempt's directory inside it, which succeeds at most
once on every filesystem, even where locks do not exclude. A directory that is there although the journal does not have
the attempt is evidence: if it has begun, the journal has gone back, and it is recorded instead of a new one
(outlets/lost_claims.py).

An attempt lives in `run_state/jobs/<job_id>/<attempt>/`, the contract between dispatcher and job. Its `entry.json` is
what the attempt runs with; nothing that happens later depends on the manifest. On a local GPU its wrapper, a bash
script, runs the job in a process group of its own, and every process inherits the liveness lock on the file `alive`.
Any host can therefore ask whether the attempt is still running: the lock is free when no process is left. The wrapper
first creates the file `taken`; a second wrapper of the same attempt finds it and exits without running anything. It
passes TERM and INT on, enforces the time limit, stops when the file `superseded` appears, and writes `exit.json` last.
So a dispatcher may die at any moment. Its jobs keep running; a dispatcher started under the same name continues with
them, and until then any other one records how they ended. A free lock without `exit.json` means that the attempt was
killed: it is lost, and the job is queued again after a pause that doubles until an attempt gets further.

What an end tells of (result, log, and last the exit status) is synced before the end is recorded: `done` outlives a
power cut only together with its result.

A configured host (a machine behind ssh, SLURM, PBS) is an outlet whose slots are submissions in flight. The claim is
journalled as `submitted`, and the attempt's directory gets `submission.json` with the name that the scheduler will know
it by, before anything is sent. One call of a small program on the host delivers, submits, asks about all attempts and
copies reports back. An attempt has ended when its own exit status or the scheduler reports it explicitly; a query that
fails proves nothing. The page of dispatcher/outlets/batch has the details.

Locks are tested, not trusted. A starting dispatcher tries to take the locks of other live pods. If it gets one, locks
do not exclude on this filesystem: all pods switch to the hard-link lock, or the dispatcher refuses to start. A host
that is shown an old version of a file stops claiming and names the mount option that helps. Before a job is taken away
from an attempt that may still be running, `superseded` is written into the attempt's directory.

Packages, from the bottom up; each may import those above it, tests/test_imports.py checks it:

    errors contract base/   exceptions; what crosses into a job; files, YAML, values, host facts
    checkpoints/            the format of job classes' checkpoints, without their arrays
    workspace hosts/ config all paths of a workspace; hosts and clusters; dispatcher.yaml; notify_config: targets;
                            job_keys: what an entry and its method may both set
    matrix/                 entries, manifests, sweep files, needs
    run_state/              journal, records, transactions, locks, liveness; facets/: pauses, notices ...; edits/: hand
                            edits
    templates/              rendering of training scripts and wrappers
    provenance/             what attempts ran from: code, packages, host
    outlets/                where attempts run: base.py is the interface, local/ has processes, slots and GPUs, batch/
                            what hosts behind ssh and schedulers have in common
    notify/                 telling people: which notices are due, who sends them, what became of them
    pod/                    the loop: claim, reconcile, recover, register; it knows no outlet by name
    doctor/                 checks of hosts, filesystems and locks
    query/ api submitting   snapshots, and what is asked of them as tables; changes that people ask for, new jobs; the
                            Python API
    tuning/ schemas         adaptive sweeps: what is tried next, from what was found; JSON schemas for editors
    cleaning/               what old attempts have left: found, and removed when asked
    web/ cli/               the page, and the commands: parse, call, render
    runtime/                job classes in JAX; runs inside the job and imports only errors, contract, base and
                            checkpoints

examples/names/ is a project of its own that uses the package from outside; scripts/demo runs it. examples/week/ is a
week in a lab, in which people, pods, notices, the account and the page are seen together; scripts/week runs it.

To make a change, begin here. The docstring at the top of the file or package says what else belongs to it; `tests/`
mirrors the package. CONTRIBUTING.md has the steps for the most frequent changes, with their tests.

    what a job gets of its host     outlets/local/gpu_shares.py and budget.py count it; cgroups.py enforces what it can
    a kind of host                  a Scheduler in a package of outlets/ (batch/scheduler.py), a line in
                                    outlets/kinds.py: SCHEDULERS, its configuration in hosts/types.py, and
                                    what the solver asks it: outlets/solver/query.py
    an outlet of another nature     a package in outlets/ with an Outlet, its Capacity and its OutletOffer; lines in
                                    outlets/kinds.py: OUTLET_KINDS and MAKERS; its options: outlets/context.py,
                                    pod/options.py and cli/main.py: _options; the loop does not change. What a job asks
                                    for: Request, below
    a state of a job                run_state/states.py: State and its row in STATES; its docstring has the rest
    what people may edit            run_state/edits/: its page; what a state that is asked for does: requests.py
    a field of a record             run_state/states.py: Record, and run_state/change.py: Change
    a key of a file                 an annotated field (base/schema/): reader, docs' tables, editors' schema follow
    a field of a manifest's entry   matrix/entry.py: Entry; if a method may set it too: job_keys.py: JobKeys; hardware:
                                    outlets/base.py: Request, pod/offers.py: request_of, query/snapshot.py, and each
                                    outlet's offer
    what `submit` does              entries from a command: matrix/new_jobs.py; their file: matrix/submitted.py; adding
                                    them, choosing hosts: submitting.py; options and output: cli/submit.py, and
                                    cli/command_options.py for what a new job is
    whose a job is                  query/snapshot.py: Snapshot.owner; of entries matrix/owners.py, manifest.py; of an
                                    attempt Record.user; names of users: base/users.py; filters: Where.of_users
    an event of the journal         run_state/events.py: Event; what it does beside a record: a module of
                                    run_state/facets/, listed in its table.py; its package says what is in one
    a concern of a pod              a Participant in pod/participants/, and its line in listed.py
    a limit on what runs at once    base/running_limits.py reads it, matrix/limits.py says which entries count in it,
                                    pod/participants/running_limits.py counts, pod/ready.py passes over what it keeps
                                    waiting
    what pauses claiming            run_state/facets/pauses.py: scopes, streaks; pod/breaker.py decides,
                                    pod/participants/pauses.py records, pod/claim.py and pod/waiting.py pass over
    a setting of dispatcher.yaml    config.py: Config; of a method: Method
    a kind of host, a key of one    hosts/types.py: its struct, and AnyHost
    a lock kind                     config.py: LockKind; the docstring of run_state/lock.py lists the other places
    a reason why a job waits        pod/claim.py: ClaimQueue.choose passes the job over (until a time: postpone), and
                                    pod/waiting.py: _own_reason says why; its docstring lists the rest. What never
                                    changes while a pod runs: pod/offers.py: Offer.excludes, for both
    a column of jobs                query/job_columns.py: COLUMNS (tables, JSON, CSV, Python, the page)
    a number above them             query/pace.py, and cli/status_text.py: Screen
    why a job is out of date        query/ran.py: its parameters; query/inputs.py: the jobs that it needs
    a notice of `status`            query/overview.py: notices
    a way to tell people            notify_config.py: its struct, Target; notify/channels/: a module; notify/child.py
    what people are told of         topics.py; of lines of the journal: run_state/facets/notices.py: _NEWS;
                                    from anything else: notify/conditions.py; its words: notify/text.py
    a picture of results            a module in query/plots/, called in cli/plotting.py; an export: query/export/
    a sweep keyword                 matrix/sweep.py: Sweep and _sweep; a distribution of draws: matrix/draw.py
    a sampler of adaptive sweeps    tuning/settings.py: SAMPLERS, and tuning/sampling.py: _make, or suggest where it is
                                    none of Optuna's
    a job class                     a class with @job in a module of runtime/jobs/, and its key and module in
                                    runtime/registry.py: _SHIPPED; a lab's own class: jobs/ of its workspace
    a check of `doctor`             a function in doctor/host_checks.py or workspace_checks.py, and its line in
                                    doctor/checks.py: CHECKS; with two hosts: doctor/two_hosts.py: PROOFS
    a view of the page              a function in query/, its route in web/app.py, a class in web/static/views/ with
                                    show, changed, draw and leave, and its line in web/static/main.js: VIEWS; it draws
                                    with dom.js, which never parses data as HTML
    a command                       a module in cli/, listed in cli/main.py: _COMMANDS; what it does: api.py and query/
    a public name                   tests/test_public_names.py lists them all
    a key, an option, a command     its row in docs/ as well; tests/test_docs.py says which page lacks it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.base.lazy import lazy_names

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.errors import DispatcherError

__all__ = ["DispatcherError", "Workspace"]

# Imported when used: code inside a job imports dispatcher.contract and must not pay for the rest.
_PUBLIC = {"Workspace": "dispatcher.api", "DispatcherError": "dispatcher.errors"}

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
