"""What to run: the entries of manifests, sweep files, and which jobs need which.

A script that generates a manifest needs only this:

    from dispatcher.matrix import write_manifest

    jobs = [{"job_id": f"fft_s{seed}", "method": "fft", "seed": seed} for seed in range(3)]
    write_manifest("matrix/matrix.json", jobs)
"""

from dispatcher.matrix.entry import Entry, parse_time_limit
from dispatcher.matrix.manifest import Manifest, load_manifest, write_manifest

__all__ = ["Entry", "Manifest", "load_manifest", "parse_time_limit", "write_manifest"]
