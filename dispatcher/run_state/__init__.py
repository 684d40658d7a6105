"""What happened: the journal, the status file, the lock. This page is the protocol that keeps them consistent.

Files. `journal/000001.jsonl` is the record: every change as one JSON line, numbered by `seq`, only ever appended to.
`matrix_status.json` is its projection, and the place where people make changes. `claims.lock` is the lock. It contains
the head: the journal's generation, its length, the checksum of that length, and which status file is the projection.
The journal and the status file can each be rebuilt from the other. The head may be lost: it is only a lower bound of
what the journal must show.

Vocabulary (events, change, states). Every line has an event. Our own code can write only the members of `Event`, the
fields of `Change`, and the state changes of one table; anything else raises before it is written. What the journal
contains is read more leniently: a field or an event of a newer version is kept and changes the record, and a field that
a person has added to a line stays with the record.

A transaction (store, locked_journal, transaction, replica).
1. Take the lock by non-blocking tries. On a network filesystem, write a token behind the head and sync it: a host that
   has lost the lock gets its error here. There the journal's descriptor is locked as well until the end, so a host that
   is cut off after this sync gets an error from its own append instead of overwriting the lines of others. It is closed
   after each transaction; on local disks it stays open (open_journal).
2. Read what was appended to the journal since the last time. Less than the head says is an error: this host is shown
   old data. Complete lines beyond the head count, because their writer died before it wrote the head. An incomplete end
   is cut off, unless complete lines follow it: then the journal is damaged.
3. Apply hand edits if the status file is not the projection.
4. Decide. A claim creates its attempt's directory.
5. Append all lines in one write, sync, write the head, release. A write that fails is cut off again, except when the
   lock was lost: then the bytes there may belong to others.
No step depends on the number of jobs.

Checksum (checksum, loaded_generation). Every process keeps a running CRC-32 of what it has read of a generation, and
compares it with the head's. At most once a second, a step also reads the last 64 KiB block and one other again, under
the name that the directory has then. On network filesystems, where a host that was cut off may write late, the other
steps read the last 4 KiB page again; on FUSE, where nothing refuses such a write, each step reads both blocks. If the
file no longer says what was read, because it was overwritten, readers and dispatchers stop and name the repair.

Facets (facets). Beside the records, the fold has one facet for each concern: pauses, refused edits, idle GPUs, studies,
notices. Transactions copy and put back, snapshots repeat, and saved folds keep every facet in the same way.

Notices (facets/notices). One facet is what people are still to be told, and what became of what they were told: see
dispatcher/notify. A dispatcher that does not know these lines ignores them, and a generation that it begins lacks them;
the next one that does know makes the targets known anew.

Memory (records, saved_fold). Records are kept packed, and a look-up unpacks one: two of the same job are equal, not
identical. Their first bytes hold the states of all. A pod that has read a long journal saves the fold of it in
`journal/fold.saved`; a process that opens the journal later reads its bytes up to there only for their checksum, and
folds the lines after it. One that only shows records (`status`, the Python API) reads the last block before that place
and what follows: from the saved checksum that of the head must follow, so a journal that was cut or replaced is
noticed, but not bytes that were overwritten in the middle. All bytes are read before the same process changes anything.
If the checksum, the generation, the version or the file itself is not right, all lines are folded. The file may be
removed at any time.

Adoption (adoption, first_journal). When there is no run state but a status file beside the manifest or in the root,
everything that writes refuses to start until `dispatcher init --adopt` begins the journal with its records, or
`status_file:` in dispatcher.yaml says that the file stays there. A line that makes no record is refused, and its job is
held.

External jobs (external). A line that was set to running with a pid is the claim of a script that is no dispatcher. It
is honoured, but no dispatcher watches the process; its GPU counts as occupied while the pid lives on this host. With
`script_lock`, dispatchers hold the script's lock from before they read the file until it shows their claims. Without
it, the dispatcher gives way if both have claimed the same job, and stops claiming.

FUSE (end_mark). GlusterFS clients show old content, even of the locked file. There the end of the journal is the name
of one file in `journal_end/`, renamed under the lock before and after each append: old names cannot be listed or
renamed, so a host that is shown an old end writes nothing. Content is read past the client's caches, repeatedly until
it is as long as the name tells and has its checksum.

Hand edits (edits). Each line of a saved status file is compared with the record of the same `rev`: a difference is an
edit; a line that is merely old changes nothing. An edit that cannot be used is refused, shown until it is settled, and
kept in rejected/. The page of the package has the details, and how editors are waited for.

Projection (projection, replaced). The new file is written and synced outside the lock, under a name that contains host
and pid, and its exact time is set so that no save looks like it. Under the lock the two names are exchanged
(renameat2), so the file that was replaced can still be read: a save of the last moment is applied, and so is what a
program writes into a file that it opened before. The file keeps a hidden name while a process of this host has it open
for writing (a lease tells), or for ten seconds where that cannot be known; a process that ends before leaves it to the
next one. Where names cannot be exchanged (NFS), the old file is opened and then replaced by rename, and watched for ten
seconds, at most until this process ends.

Generations (generations, rotation). A journal with many lines per record is replaced by a new generation. Its snapshot
is written under the next number outside the lock; under the lock the lines since then follow, and the old generation
gets a last line `continued` that names the new one. That line alone puts it in force, with or without a head; a file
that no such line names does not count. The old generation is then compressed. A journal that was removed is rebuilt
under a number that was never used.

Repair (repair). A journal that is shorter than its head, damaged in the middle or overwritten stops all dispatchers
until `dispatcher doctor --repair` begins a new generation from the lines that can be read and the newer records of the
status file. The damaged file is kept in rejected/, and `seq` never goes back. Claims may be missing then, as in a
restored copy: pods find their attempts by the directories (outlets/lost_claims).

Locks (lock, lock_queue, hardlink_lock, head, lock_choice). All dispatchers use one kind, which the header of the
journal names; a dispatcher with another setting is refused. The file `claims.hardlink` means that kernel locks do not
exclude here: a dispatcher that has proved this twice creates it by taking the hard-link lock, and the others, which
look for it each time that they have taken another lock, follow. A lock file that was removed while it was open is
opened again. The processes of one host take turns in trying it.

Liveness locks (liveness). The dispatcher locks the `alive` file of an attempt before it starts the wrapper, which
inherits the lock with all its children, so a started attempt always has a liveness lock. The file names the process
that made the directory, with its host, boot and PID namespace (base/host), because pids are meaningful only there: so a
claimant that died between mkdir and journal is told from one that is alive. A free lock proves nothing while a file
server that has restarted may have forgotten it (nfs); then heartbeats decide.

Beside the protocol. What a state that a person asks for does is decided in requests. known_jobs has the jobs of all
manifests, observer which other dispatchers live. prepared makes ahead what a claim needs. preview has the records as
the next transaction will find them, and rehearsal is a store for dry runs, which changes nothing but memory. progress,
stalls, results, failures and gpu_hour tell what is known of jobs and GPUs from what they have reported.
"""
