"""Snapshots of the project's code: content-addressed archives for hosts that do not see the workspace.

A snapshot is a tar archive named after its SHA-256, so that equal code is archived, sent and stored once.

    git         runs git in a workspace; errors say what to do
    snapshot    Snapshot; archive: the writer of archives that depend on nothing but what is in them
    commit      what a commit has for the workspace: its files, its submodules, a key for them
    ship        the makers: `ship` (HEAD), `ship_dirty` (tracked files as they are now), `ship_files` (given files)
    changes     how a copy differs from its commit, kept for those who look at its attempts
    cache       the archives under run_state/code/, found by the key of what they hold
    sending     given files, into the copies of the workspace that hosts have
    command     the makers as a program, for those that must not wait for git: `python -m dispatcher.outlets.code`

What is archived. `ship` takes what HEAD has of the workspace's directory: tracked files only. If the workspace is a
subdirectory of a repository, it is that directory alone, and the names in the archive are relative to it. `ship_dirty`
takes the tracked files as they are now, with what was added by `git add`; untracked files are never part of it.
run_state/ and the status file are left out even where they are tracked. Submodules that are checked out are archived
with the commit that the workspace's commit names; one that is not is an error, and so is a Git LFS pointer whose file
was not fetched. `export-ignore` and `export-subst` of .gitattributes are obeyed, also those of directories above.

Archives are reproducible: files in git's order (by the bytes of their names), owned by root, with the modes 0644 and
0755 and the time of HEAD's commit. So the same code has the same digest on every host.
"""
