"""The format of checkpoints, without their arrays: what `dispatcher.runtime` saves, and `dispatcher clean` removes.

    storage     the interface of a series, and the names of its files; directory: a series in a directory
    manifest    the files of a checkpoint and its place in the order; checksum, reference
    series      the list, the latest, the order of the next; retention: which are kept
    fence       only the current attempt of a job commits, and what it reports: reported
    scratch     where checkpoints are assembled; file_tree

The protocol is described in runtime/checkpoint. Nothing here imports JAX or Orbax; checksums need the library xxhash,
of the extra `jax`.
"""
