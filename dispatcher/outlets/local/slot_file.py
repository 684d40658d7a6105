"""What was counted for an attempt, in its directory: a dispatcher that finds it again counts the same.

Neither the manifest nor dispatcher.yaml can tell later: both may have changed.
"""

from __future__ import annotations

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.outlets.base import Bundle, Slot
from dispatcher.workspace import AttemptPaths


def with_slot(bundle: Bundle) -> Bundle:
    """The bundle with the file, where there is something to be said beyond GPUs, which the record has."""
    amounts = msgspec.structs.replace(bundle.slot, gpus=())
    if amounts == Slot():
        return bundle
    contents = {**bundle.files, contract.SLOT_FILE: msgspec.json.encode(amounts) + b"\n"}
    return msgspec.structs.replace(bundle, files=contents)


def read_slot(paths: AttemptPaths) -> Slot:
    """What was counted for an attempt, without its GPUs; nothing where it asks for nothing, or the file is gone."""
    try:
        found = msgspec.json.decode(files.read_at_once(paths.slot), type=Slot)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Slot()
    # Its job may have written there: it must not make room that is not there.
    return found if min(found.cpus, found.memory_mib, found.gpu_memory_mib or 0) >= 0 else Slot()
