"""Snapshots of a workspace, and the rows and tables made from them.

snapshot_reader and manifests read the files and give a `Snapshot`; so does ran, for the entries of attempts. A reader
that stays (`status --watch`) makes the next snapshot from the last one and the jobs that changed (listed_records), and
what is asked of all jobs is answered without unpacking their records (run_state/records.py: ByState). Everything else
is pure: the same snapshot gives the same rows. selection, changes, scope: which jobs a person's request applies
to, and what it does. refusals: hand edits that were refused. known_words: the keys and values that jobs have, for
completion.
"""
