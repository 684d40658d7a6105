"""Snapshots of a workspace, and the rows and tables made from them.

snapshot_reader and manifests read the files and give a `Snapshot`; so does ran, for the entries of attempts. Everything
else is pure: the same snapshot gives the same rows. selection, changes, scope: which jobs a person's request applies
to, and what it does. known_words: the keys and values that jobs have, for completion.
"""
