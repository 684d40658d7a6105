"""What to run: the entries of manifests, sweep files, and which jobs need which.

A script that generates a manifest needs only this:

    from dispatcher.matrix import write_manifest

    jobs = [{"job_id": f"fft_s{seed}", "method": "fft", "seed": seed} for seed in range(3)]
    write_manifest("matrix/matrix.json", jobs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.base.lazy import lazy_names
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import Manifest, load_manifest, write_manifest

if TYPE_CHECKING:
    from dispatcher.matrix.sweep import expand

__all__ = ["Entry", "Manifest", "expand", "load_manifest", "write_manifest"]

# Imported when used: dispatchers read manifests and must not pay for sweep files.
__getattr__, __dir__ = lazy_names(__name__, {"expand": "dispatcher.matrix.sweep"})
