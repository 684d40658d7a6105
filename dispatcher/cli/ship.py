"""`dispatcher ship FILES...`: send files of the workspace to hosts that do not see it."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from dispatcher.base.messages import counted
from dispatcher.cli.common import json_option, layout
from dispatcher.cli.hardware import hosts_option
from dispatcher.cli.printing import note, print_json
from dispatcher.errors import UsageError, nearest

_FAILED = 1


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--outlet", "outlets", multiple=True, metavar="HOST", help="Only to this host; may be repeated. [default: all]"
)
@hosts_option
@json_option
def ship(files: tuple[Path, ...], outlets: tuple[str, ...], hosts_file: Path | None, as_json: bool) -> int:
    """Send FILES of the workspace, and those below directories, to the hosts that do not see it.

    They get the same place in the host's copy of the workspace, where attempts find them below $DISPATCHER_ROOT: data
    that is not in git, weights, a tokenizer. The code of jobs is sent without this command. Files that are there are
    replaced, nothing is removed.
    """
    from dispatcher.config import load_config
    from dispatcher.outlets.code.sending import files_below, send

    where = layout()
    config = load_config(where, hosts_file)
    known = config.hosts.hosts
    if not known:
        raise UsageError(f"no host is configured in {where.config_file}")
    for name in outlets:
        if name not in known:
            raise UsageError(f"--outlet {name}: no such host is configured{nearest(name, known)}")
    names = files_below(where, files)
    chosen = [host for host in config.hosts.in_order() if not outlets or host.name in outlets]
    sent = []
    for one in send(config, chosen, names):
        sent.append(one)
        if as_json:
            continue
        if one.error:
            note(f"{one.host}: {one.error}")
        elif one.directory:
            click.echo(f"{one.host}: {counted(len(names), 'file')} in {one.directory}")
        else:
            click.echo(f"{one.host}: sees the workspace, so nothing is sent")
    if as_json:
        print_json({"files": names, "hosts": [msgspec.structs.asdict(one) for one in sent]})
    return _FAILED if any(one.error for one in sent) else 0
