"""Checkpoints that are committed atomically. This page is the protocol.

A checkpoint is a directory, or a prefix in an object store:

    checkpoint/      the arrays, by Orbax
    tree.json        name, shape and type of every leaf; numbers and text of the tree
    rng              Python's, NumPy's and JAX's random state, of every process
    position.json    the position of the data iterator, of every process
    config.json      metadata
    job.json, config.yaml   the job and its configuration
    manifest.json    every file with size and checksum, the step, the place in the order; written last

Saving. The caller waits only while arrays are copied off the devices. The rest happens in the background, one save at
a time: Orbax writes below `ckpt.tmp/`, then come the small files, the checksums of all files, and the manifest;
everything is synced, and one rename commits the checkpoint. In an object store the files are uploaded under a prefix
that no other writer uses, checksums are computed during the upload, and the manifest is put last, only if it is absent.
A process that dies in between leaves no checkpoint, and the next one removes its files in `ckpt.tmp/`.

Order. The checkpoints of one series are ordered by (term, attempt, sequence), never by a clock: a run begins the term
after the newest one that it finds, so a late commit of an older attempt is still older. The file `latest` names the
latest checkpoint, unless a newer one was committed since; without that file the order alone decides. To rewind to an
earlier checkpoint, that one is written to `latest`, and then all newer ones are moved to `set-aside/`.

Fence. Right before the commit the attempt's directory is opened and checked: if it contains `superseded`, or the series
contains a checkpoint of a newer attempt of the same job, nothing is committed. A checkpoint of the same name is
replaced only by a newer one: it is renamed, checked once more, and removed after the new one has its name.

Restoring. The names, shapes and types of all leaves are compared with the target first, and checksums are checked
before Orbax reads. A damaged checkpoint is reported and moved to `damaged/`, and the one before it is used; a manifest
of a newer format is an error. The target determines the placement of arrays: any number of devices can restore what any
other number saved.

Removing a checkpoint begins with its manifest, so it ends atomically as well, and its tree.json goes last: by it a save
of the same name recognizes the rest, and removes it.
"""

from __future__ import annotations

from dispatcher.checkpoints.reference import CheckpointRef
from dispatcher.checkpoints.retention import Retention
from dispatcher.runtime.checkpoint.contents import Contents
from dispatcher.runtime.checkpoint.manager import CheckpointManager, Restored
from dispatcher.runtime.checkpoint.rng import RandomState

__all__ = ["CheckpointManager", "CheckpointRef", "Contents", "RandomState", "Restored", "Retention"]
