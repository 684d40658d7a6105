"""Proofs about hosts, filesystems and locks: what `dispatcher doctor` prints, and what a pod checks when it starts.

`dispatcher doctor` runs two lists: checks.CHECKS on this host alone, and two_hosts.PROOFS together with a doctor that
runs on another host at the same time. A new check is a function in the file of its subject and a line in one of them.

    checks              the list of checks of one host, and the order in which everything is run
    host_checks         python, bash, processes, GPUs
    workspace_checks    configuration, manifest, permissions, disk space, journal, status file, pods, mount
    lock_checks         each kind of lock excludes on this host; how long a lock and a sync take
    two_hosts           the list of proofs of two hosts
    two_host_locks      locks exclude between hosts, and change hands quickly; transactions of both lose nothing
    two_host_files      mkdir has one winner; how late the other host sees renames, appends and attributes
    two_host_clocks     how much the clocks differ

    findings, context, pair    what a check returns, and what checks of one and of two hosts get
    lock_test                  takes one kind of lock on one file, for lock_checks and two_host_locks
    meeting                    how the doctors of two hosts find each other and exchange messages, by files

A pod proves, at every start and before its first claim:

    fitness        jobs can run on this host: bash, /proc, permissions (doctor checks the same)
    prove_locks    no live pod's liveness lock can be taken; else all pods change to the hard-link lock
    prove_view     this host sees the journal lines and the attempt directories of pods on other hosts
"""
