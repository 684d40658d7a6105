"""`dispatcher schema`: JSON schemas of the files that people write, with which editors complete and check them."""

from __future__ import annotations

import click

from dispatcher.cli.job import run_runtime
from dispatcher.cli.printing import print_json
from dispatcher.errors import UsageError, nearest

_JOB = "job"


@click.command()
@click.argument("kind", metavar="config|entry|manifest|sweep|study|job")
@click.argument("key", required=False)
def schema(kind: str, key: str | None) -> None:
    """Print the JSON schema of dispatcher.yaml (config), of an entry, a manifest, a sweep file, a study
    or the job file of KEY.

    Editors complete and check files with it: docs/editor.md says how.
    """
    from dispatcher import schemas

    if (kind == _JOB) == (key is None):
        raise UsageError("schema job KEY: name the job class" if kind == _JOB else f"schema {kind} takes no KEY")
    if kind == _JOB:
        run_runtime(("schema", str(key)))
    if kind not in schemas.SCHEMAS:
        raise UsageError(f"{kind}: no such kind of file{nearest(kind, [*schemas.SCHEMAS, _JOB])}")
    print_json(schemas.schema(kind))
