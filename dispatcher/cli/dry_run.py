"""`dispatcher --dry-run`: what a start with these options would do."""

from __future__ import annotations

import time

from dispatcher.base.times import Clock
from dispatcher.cli.printing import note, print_rows
from dispatcher.config import Config
from dispatcher.pod.options import PodOptions
from dispatcher.workspace import Layout


def show_dry_run(layout: Layout, config: Config, options: PodOptions, *, utc: bool, as_json: bool) -> int:
    from dispatcher.pod.rehearsal import dry_run
    from dispatcher.pod.waiting import as_written

    found = dry_run(layout, config, options, as_written if as_json else Clock(time.time(), utc))
    rows = [
        {"job": row.job_id, "claimed": "yes" if row.claimed else "no", "slot": row.slot, "why": row.why}
        for row in found.rows
    ]
    print_rows(rows, "json" if as_json else "plain", ("job", "claimed", "slot", "why"))
    for text in found.notes:
        note(text)
    return 0
