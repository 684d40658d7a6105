"""What happened: the journal, the status file, the lock, and how they are kept from lying. This page is the protocol.

Files. `journal/000001.jsonl` is the record: every change, one line each, `seq` rising by one, only ever appended to.
`matrix_status.json` shows it and is where people change things. `claims.lock` is the lock, and the head stands in it:
the journal's generation, its length, the checksum of that length, and which status file is the projection. Journal and
status file each rebuild the other; the head can be lost, for it is only a lower bound of what the journal must show.

A transaction (store). Take the lock by non-blocking tries. On a network filesystem write a token behind the head and
sync it: a host whose lock was taken away gets its error here. There the journal's own descriptor is locked, too, until
the end: a host that is cut off after the token's sync and heard of late gets its error from the journal's, instead of
writing over the lines of others. Read what the journal has beyond the last time; less than the head says means that
this host is shown old data, and is an error. Whole lines beyond the head count (their writer died before it wrote the
head); what was never finished behind them is cut off, unless later lines show that it is damage. Take in the status
file if it is not the projection. Decide; a claim makes its attempt's directory. Write all lines at once, sync, write
the head, release. A write that fails is cut off again, unless the lock was lost: then what stands there is of others.
No step depends on how many entries there are.

Checksum (checksum, replica). Every process keeps a running CRC-32 of what it has read of a generation. Whoever reads
compares it with the head's, at the head's length. Each step also reads the last 64 KiB block and one other again (on a
local disk, where no cut-off host can write late, at most once a second): what stands in memory must still be what the
file says. Where it is not (somebody has written over lines), readers and dispatchers stop, and name the repair.

Moving in (moving_in, beginning). A status file beside the manifest or in the root, and no run state: nothing that
writes starts, until `dispatcher init --adopt` begins the journal with its records or `status_file:` says that it stays
there. A line that makes no record is refused and its job held.

Outside (outside). A line set to running with a pid is the claim of a script that is no dispatcher: honoured, watched by
nobody, its GPU taken while the pid lives here. With `script_lock` dispatchers hold the script's lock from before they
look at the file until their claims stand in it. Without, one that claimed the same entry gives way, and stops claiming.

FUSE (end_mark). GlusterFS clients show old content, even of the locked file. There the end of the journal is the name
of one file in `journal_end/`, renamed under the lock before and after each append: old names cannot be listed or
renamed, so a host that is shown an old end writes nothing. Content is read past the client's caches, repeatedly until
it is as long as the name tells and has its checksum.

Hand edits (edits, merge, hand_edits). Each line is compared with the record of the same `rev`: what differs is an
edit, what is merely old is not. Old versions are remembered, or read from the journal once for a whole old copy. What
cannot be used is refused, shown until it is settled, and kept in rejected/; a renamed job, or a copy that is older than
the journal, is one refusal. A line that cannot be read suspends its job's line and no other, as long as each job has a
line of its own, and the file is left alone until the line is corrected. The journal keeps what was taken in of a line,
so the same line in a file that is left alone, or saved again, is not taken in twice. A save within one tick of the
file's clock looks like the one before it, so such a file is examined again later.

Projection. The new file is written and synced outside the lock, under a name with host and pid in it, and its exact
time is set so that no save looks like it. Under the lock the two names are exchanged (renameat2), so the file that
was there can still be looked at: a save of the last moment is taken in, and for ten seconds so is what an editor
writes into a file that it opened before. Where names cannot be exchanged (NFS), the old file is opened and then
renamed over.

Editors (editors). While an editor's swap or lock file stands beside the status file (vim, nano, Emacs), the projection
waits: an editor asks, or refuses to save, when the file changes under it. It waits until the editor is closed or dead,
nothing was typed there for three minutes, or ten minutes are over, and `status` and the dispatchers say so. A command
leaves the file to a dispatcher that goes on; whoever is the last writes it all the same.

Generations (rotation). A journal with many lines per record is begun anew: the snapshot is written under the next
number outside the lock, the lines after it follow under the lock, then the old generation gets a last line
`continued` that names the new one. That line alone puts it in force, with or without a head; a file that no such line
names counts for nothing. The old one is compressed then. A journal that was removed is rebuilt under a number that
was never used.

Repair. A journal that is shorter than its head, damaged in the middle or written over stops all dispatchers, until
`dispatcher doctor --repair` begins a new generation from the lines that are whole and the newer records of the status
file. The damaged file is kept in rejected/, and `seq` never goes back.

Locks (lock, hardlink_lock, head, lock_choice). All dispatchers use one kind, which the header of the journal names; a
dispatcher with another setting is refused. The file `claims.hardlink` means that kernel locks do not exclude here: a
dispatcher that finds this out creates it by taking the hard-link lock, and the others, which look for it each time that
they have taken another lock, follow. A lock file that was removed while it was open is opened again.

Liveness locks (liveness). The dispatcher locks the `alive` file of an attempt before it starts the wrapper, which
inherits the lock with all its children, so a started attempt always has a liveness lock. The file names the process
that made the directory, with its host, boot and PID namespace (base/host), because pids are meaningful only there: so a
claimant that died between mkdir and journal is told from one that is alive. A free lock proves nothing while a file
server that has restarted may have forgotten it (nfs); then heartbeats decide (heartbeat).
"""
