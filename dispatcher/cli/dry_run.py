"""`dispatcher --dry-run`: what a pod with these options would claim, and why not the rest."""

from __future__ import annotations

import click

from dispatcher.config import Config
from dispatcher.pod.options import PodOptions
from dispatcher.workspace import Layout


def show_dry_run(layout: Layout, config: Config, options: PodOptions, *, as_json: bool) -> int:
    from dispatcher.pod.dry_run import dry_run
    from dispatcher.report.tables import render

    rows = [
        {"job": row.job_id, "claimed": "yes" if row.claimed else "no", "slot": row.slot, "why": row.why}
        for row in dry_run(layout, config, options)
    ]
    click.echo(render(rows, "json" if as_json else "plain", ("job", "claimed", "slot", "why")))
    return 0
