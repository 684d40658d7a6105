"""Where the time of slots and GPUs went: `dispatcher usage`. All of it comes from the journal.

history reads the journal: when each attempt ran and how it ended, when each pod ran and with which slots, and when jobs
waited. sweep goes through the window in the order of time and finds out what was idle. ledger adds up by keys, tables
shows the sums.

What is counted. The time of an attempt is from its start to its end, with its slots: one for each GPU, or one CPU
slot. Where attempts share GPUs (`--jobs-per-gpu N`), each GPU has N slots, and an attempt on one slot counts 1/N of the
GPU. On a configured host it is from when it was seen running, with the GPUs that it asked for.

How it ended is what the journal said at that time, and later changes of the job do not alter it: the hours of a job
that is done, and is run again, were useful. `useful` is exit status 0. `cancelled` was stopped because a person
cancelled, held or requeued the job. An attempt that fails and is retried is `failed` each time.

An attempt whose pod was killed ends when its own exit status says so, however late that was found. Without one (its
host died), the time of its end is unknown: it counts until the last sign of it, as `unknown end`.

A pod has its slots from its first transaction until it ended; one that was killed until its last heartbeat. So what its
slots were used for, and what was idle of them, make up their number times the time. Attempts that ran on without their
pod, or on other hosts, come on top and are shown beside it. What is left over, because records contradict one another,
is shown as well.

Times are those of the host on which pod and attempt ran. By how much its clock is wrong is known of the last pod of a
name, by the date that the file server gives its file, and taken off; of others, wrong clocks move what is at the edge
of the window, and nothing else.
"""
