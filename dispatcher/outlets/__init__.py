"""Places where attempts run, each behind the same small class, so that the loop knows none of them by name.

base       The seam: Key, Bundle, Placement, Status, Report, Capacity and the Outlet protocol. Plain data both ways.
kinds      The one list of outlets by name; context: what they are made from.
bundle     Rendering of what an attempt is started from (pure), and its delivery into a workspace.
wrapper    What the wrapper of an attempt keeps and reports, wherever it runs.
lost_claims
           Attempts that the journal does not have, because it has gone back.
local/     Attempts as processes of this host.
batch/     What all configured hosts have in common: one Outlet for plain/, slurm/, pbs/, volcano/ and tpu/, which are
           Schedulers.
remote/    Calls of a small program on a host, here or over ssh, without waiting for it.
node/      What is set up around a command on a node: modules, code, environment, container.
code/      Snapshots of the project's code, for hosts that do not see the workspace.
solver/    Which configured host can run a request for hardware.

To add a kind of host, write a Scheduler (batch/scheduler.py) in a package of its own and add a line to
kinds.SCHEDULERS. To add an outlet of another nature, write a class with the methods of `Outlet`, its capacity and its
offer, and add lines to kinds.OUTLET_KINDS and MAKERS. Either way add it to tests/outlets/test_contract.py, which holds
for all.

What an outlet promises:

1. No call blocks. Programs that an outlet runs are child processes; `wait_fds` and `due_in_s` tell the loop when `poll`
   has news. A host or a scheduler that hangs changes nothing for the other outlets of the pod.
2. An attempt is identified by its Key. A handle (a scheduler's job id, a pid) is a hint that may be missing: a
   dispatcher that dies between a submission and its record finds the attempt by what is derived from the key (its
   directory, its name in the scheduler). So the same bundle submitted twice is one submission. Should an attempt be
   started twice all the same (a scheduler's own requeue, a submission whose answer was lost), only the first wrapper
   runs: it creates the file `taken` before anything else. A second one exits with status 1 and writes no exit
   status. An outlet that is told the end of a run looks for `exit.json`, and where there is none, whether another
   run of the attempt is alive, before it reports an end.
3. A failure to start is no exception but the end of the attempt: `Ended` with `cannot start`, and `blames_host` when
   the entry is not the cause. What the outlet cannot tell is `Unknown`, which is never treated as an end.
4. The claim is journalled, with the outlet's name and `first_state`, before `submit` is called; the placement after.
   A pod that finds an attempt in flight whose dispatcher is dead asks the outlet that the record names; it makes one
   without slots where it has none (kinds.make_for_orphans), and leaves the attempt alone where it cannot.
5. The attempt's directory in the workspace is complete when `poll` reports its end: exit status, log and reports are
   read from there, wherever it ran.
6. `fence` and `recover` mark an attempt as superseded before its job can be claimed again, so that a copy of it that
   comes back finds that and ends.

Three methods go beyond submit, poll and cancel because dispatchers die: `adopt` is for a dispatcher that was restarted
under its name, `recover` for every pod that outlives another one, and `inspect` is what `--dry-run` shows of both.
`hold`, `refresh_capacity` and `capacity_due_in_s` are for slots that cannot be used for a while, such as GPUs that are
paused or used by others. `site` tells per slot how an attempt sees the workspace. That code is shipped and that reports
are brought home is no part of the seam: an outlet whose host does not see the workspace does both for itself.
"""
