"""Outlets that give attempts to a scheduler or to another host, and hear of them by asking.

scheduler     What differs between the kinds: the protocol Scheduler, and the states that it tells.
outlet        What is common to all kinds: the Outlet that the loop uses.
agent_session Calls of the agent on the host, one after the other, each with all steps that are due.
remote_host   Where attempts' files are on the host: in this workspace, or in a directory there.
grouping      Which attempts share a job, and which jobs a submission.
preparing     From bundles to submissions, with their files in the workspace.
sending       Submissions on their way, and the limits that they keep to; backoff: when a refused one is tried again.
code_delivery Which code the attempts on the host run; shipping: its archive, made and sent.
tracked       What is known of one attempt.
watching      How attempts are; ends: how one ended, by its own exit status and the scheduler's word.
stopping      Attempts that are to be stopped or superseded.
status        What the loop is told of attempts that have not ended.
problems      What is wrong with the host; provisioning: hosts that are made when they are wanted.
hardware      What the host has free.
gpu_use       For how long attempts have left their GPUs idle, as they tell.
mirror        The copy in the workspace of what attempts report elsewhere.
identity      The names by which a scheduler's jobs are known as attempts of this workspace.
capacity      Submissions in flight as slots; offer: what a pod publishes of them.

An attempt's way. `submit` writes its files and `submission.json`, with the name that the scheduler will know it by,
into the workspace. The next call of the agent delivers what the host does not see and runs the scheduler's program.
An answer that is lost, or doubtful, leaves the submission as tried: it is submitted again only when the scheduler has
answered for `absent_s` without naming it. A dispatcher that is started again, or another one, finds it by
`submission.json`; without that file it was never sent. What the scheduler does not name any more has ended if there
is an exit status; if not, it is asked for details; if it has none, nothing is concluded for `lost_after`, then the
attempt is superseded and counts as lost when every wrapper of it must have noticed. No attempt is given up before its
host has the mark. A question that fails is never an absence, and neither is one that another cluster answers.

An attempt's location (hosts/types.py: Location) is where it was submitted to. What of it can be named is named by every
call: an outlet is made for one location (kinds.located). What cannot is asked: the first call of the host finds it out,
and from then on every call confirms it before it does anything (remote.operations.Confirm). Attempts that were
submitted elsewhere are left to an outlet that leads there, and are unknown while none does.
"""
