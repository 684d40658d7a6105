"""Hand edits: what people change in `matrix_status.json`, and what becomes of it.

    saved       notices that the file was saved, reads it, and records what was changed; the only part with files
    status_file text and lines: rendering, and parsing that keeps a broken line apart from the others
    changes     the entry point, `changes(old, new)`: the edits and the refusals of a whole file
    adopting    the same for a file without a journal: every line makes a record
    editors     programs that have the file open, which must not find it replaced

What a state that a person asks for does to a job is in requests.py, for commands as well; what lines of a lab's own
script mean is in external.py. The file is written by projection.py.

Each line is compared with the record of the same `rev`: a difference is an edit; a line that is merely old changes
nothing. Old versions of records are remembered, or read from the journal, once for a whole old copy. An edit that
cannot be used is refused, shown until it is settled, and kept in rejected/. A renamed job is one refusal, and so is a
copy that is older than the journal. A line that cannot be parsed suspends the edits of its own job only, as long as
each job has a line of its own; the file is left alone until the line is corrected. The journal records which edit of a
line was applied, so the same edit is not applied twice when the file is left alone or saved again. A save within one
tick of the file's clock looks like the one before it, so such a file is examined again later.

While an editor's swap or lock file (vim, nano, Emacs) is beside the status file, the projection waits, because an
editor asks, or refuses to save, when the file changes under it. It waits until the editor is closed or dead, nothing
was typed for three minutes, or ten minutes have passed; `status` and the dispatchers say so. A command leaves the file
to a running dispatcher; the last process writes it in any case.
"""
