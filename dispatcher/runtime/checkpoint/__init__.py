"""Checkpoints that are whole or not there. This page is the protocol.

A checkpoint is a directory, or a prefix in an object store:

    checkpoint/      the arrays, by Orbax
    tree.json        name, shape and type of every leaf; numbers and text of the tree
    rng              Python's, NumPy's and JAX's random state, of every process
    position.json    where the data iterator stands, of every process
    config.json      metadata
    job.json, config.yaml   which job it was, with which configuration
    manifest.json    every file with size and checksum, the step, the place in the order; written last

Saving. The caller is held up while arrays leave the devices. The rest happens in the background, one save at a time:
Orbax writes below `ckpt.tmp/`, the small files follow, checksums are taken from what has just been written, then the
manifest; everything is synced, and one rename makes it visible. In an object store the files are uploaded under a
prefix that no other writer has, checksums are taken on the way, and the manifest is put last, only if it is absent. A
process that dies anywhere in between leaves no checkpoint, and what it left in `ckpt.tmp/` the next one removes.

Order. Checkpoints of one place are ordered by (term, attempt, sequence), never by a clock: a run begins the term after
the newest one that it finds, so what an older attempt commits late is still older. The file `latest` says which one
was named last, and a newer one than it knew counts more; without it the order alone decides. Who goes back to an
earlier one names it there, and then moves what is newer to `set-aside/`.

Fence. Right before the commit the attempt's directory is opened and looked at: with `superseded` in it, or a
checkpoint of a newer attempt of the same entry in the series, nothing is committed. A name that is taken is replaced
only by a newer checkpoint: the old one is renamed, looked at once more, and removed after the new one has its place.

Restoring. Names, shapes and types of all leaves are compared with the target first, and checksums before Orbax
reads. What is damaged is reported, moved to `damaged/`, and the one before it is taken; a manifest of a newer format
is an error. Where arrays lie is the target's choice: any number of devices restores what any other number saved.

Removing begins with the manifest, so that a checkpoint ends in one moment too.
"""

from __future__ import annotations

from dispatcher.runtime.checkpoint.contents import Contents
from dispatcher.runtime.checkpoint.manager import CheckpointManager, Restored
from dispatcher.runtime.checkpoint.reference import CheckpointRef
from dispatcher.runtime.checkpoint.retention import Retention
from dispatcher.runtime.checkpoint.rng import RandomState

__all__ = ["CheckpointManager", "CheckpointRef", "Contents", "RandomState", "Restored", "Retention"]
