"""`dispatcher matrix make|check|show`: what there is to run, before anything runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from dispatcher import contract
from dispatcher.cli.common import where_option
from dispatcher.config import Config, interpreter, load_config
from dispatcher.errors import DispatcherError, ManifestError, TemplateError
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import Manifest, load_manifest, write_manifest
from dispatcher.values import text_of
from dispatcher.workspace import Layout

# More columns than this do not fit a terminal.
_MOST_COLUMNS = 8


@click.group()
def matrix() -> None:
    """Make, check and show manifests."""


@matrix.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The manifest to write [default: the workspace's]."
)
@click.pass_obj
def make(layout: Layout, spec: Path, output: Path | None) -> None:
    """Write the manifest that the sweep specification SPEC stands for."""
    from dispatcher.matrix.sweep import expand

    config = load_config(layout)
    target = output or config.matrix
    manifest = write_manifest(target, expand(spec), known_ids=known_ids(config.layout))
    click.echo(f"{target}: {_count(manifest.entries.values())}")


@matrix.command()
@click.argument("manifest", required=False, type=click.Path(path_type=Path))
@click.pass_context
def check(context: click.Context, manifest: Path | None) -> None:
    """List every fault of MANIFEST, and parameters that no template reads; exit status 1 if there are faults."""
    layout: Layout = context.obj
    config = load_config(layout)
    try:
        loaded = load_manifest(manifest or config.matrix, known_ids(config.layout))
    except ManifestError as error:
        click.echo(error, err=True)
        context.exit(1)
    faults, warnings = check_jobs(config, loaded)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if faults:
        click.echo(ManifestError(str(loaded.path), faults), err=True)
        context.exit(1)
    click.echo(f"{loaded.path}: {_count(loaded.entries.values())}")


@matrix.command()
@click.argument("manifest", required=False, type=click.Path(path_type=Path))
@where_option
@click.option("--json", "as_json", is_flag=True, help="The entries as a JSON list.")
@click.pass_obj
def show(layout: Layout, manifest: Path | None, where: Where, as_json: bool) -> None:
    """Show the entries of MANIFEST with the parameters in which they differ."""
    config = load_config(layout)
    loaded = load_manifest(manifest or config.matrix, known_ids(config.layout))
    entries = [entry for entry in loaded.entries.values() if where.holds(entry.value)]
    if as_json:
        lines = [json.dumps(entry.document(), ensure_ascii=False) for entry in entries]
        click.echo("[\n" + ",\n".join(lines) + "\n]" if lines else "[]")
        return
    if entries:
        click.echo(_table(entries))
    click.echo(f"{_count(entries)} of {len(loaded.entries)}" if where else _count(entries))


def known_ids(layout: Layout) -> frozenset[str]:
    """The jobs that the status file knows, whichever manifest they come from; none where it cannot be read.

    Whoever reads the run state in earnest says what is wrong with the file; here it only widens what may be needed.
    """
    import msgspec

    try:
        content = msgspec.json.decode(layout.status_file.read_bytes(), type=dict[str, msgspec.Raw])
    except (OSError, ValueError, RecursionError):
        return frozenset()
    return frozenset(content)


def check_jobs(config: Config, manifest: Manifest) -> tuple[list[str], list[str]]:
    """Faults and warnings that show only when jobs are started: templates, required parameters, placeholders."""
    from dispatcher.templates.render import command_line, placeholders, render_training, unread_parameters, uses_script

    faults: dict[str, None] = {}
    warnings: list[str] = []
    by_method: dict[str, list[Entry]] = {}
    for entry in manifest.entries.values():
        by_method.setdefault(entry.method, []).append(entry)
    _check_job_keys(config, manifest, faults, warnings)
    for name, entries in by_method.items():
        method = config.method(name)
        for entry in entries:
            try:
                command_line(method, entry, Path("script.py"))
                if uses_script(method, entry):
                    render_training(method.template, entry, method)
            except TemplateError as error:
                faults.setdefault(str(error))
        read_by_command = {entry.job_id: placeholders(method, entry) for entry in entries}
        scripted = [entry for entry in entries if uses_script(method, entry)]
        try:
            unread = unread_parameters(method.template, scripted) if scripted else {}
        except DispatcherError as error:
            faults.setdefault(str(error))
            continue
        warnings += _unread_lines(str(method.template), unread, read_by_command)
    return list(faults), warnings


def _check_job_keys(config: Config, manifest: Manifest, faults: dict[str, None], warnings: list[str]) -> None:
    """Look at the entries that say `job`: whether there is such a job, and whether it takes their configuration.

    Only the jobs' own code knows, and it may import JAX: another process asks it.
    """
    entries = [entry.document() for entry in manifest.entries.values() if entry.job and entry.command is None]
    if not entries:
        return
    root = config.layout.root
    done = subprocess.run(
        [os.fspath(interpreter(None)), "-P", "-m", "dispatcher.runtime", "check"],
        input=json.dumps(entries),
        cwd=root,
        env={**os.environ, contract.ROOT: os.fspath(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or "no reason given").splitlines()[-1]
        warnings.append(f"the entries with a job could not be checked: {last}")
        return
    # What a job's own module prints when it is imported stands above.
    for job_id, found in json.loads(done.stdout.splitlines()[-1]).items():
        for fault in found:
            faults.setdefault(f"{job_id}: {fault}")


def _unread_lines(
    template: str, unread: Mapping[str, list[str]], read_by_command: Mapping[str, frozenset[str]]
) -> list[str]:
    lines = []
    for key, job_ids in unread.items():
        ignored = [job_id for job_id in job_ids if key not in read_by_command[job_id]]
        if ignored:
            count = "1 entry says" if len(ignored) == 1 else f"{len(ignored)} entries say"
            lines.append(f"{template}: does not read {key}, which {count} (such as {ignored[0]})")
    return lines


def _count(entries: Iterable[Entry]) -> str:
    """`24 entries (fft 12, lora 12)`."""
    methods = Counter(entry.method for entry in entries)
    total = methods.total()
    listed = ", ".join(f"{method} {count}" for method, count in methods.items())
    return f"{total} {'entry' if total == 1 else 'entries'}" + (f" ({listed})" if listed else "")


def _table(entries: list[Entry]) -> str:
    from tabulate import tabulate

    columns = ["job_id", "method", *_varying(entries)]
    rows = [[_cell(entry.value(column)) for column in columns] for entry in entries]
    return tabulate(rows, headers=columns, tablefmt="simple", disable_numparse=True)


def _cell(value: object) -> str:
    """One line, whatever the value is."""
    text = "" if value is None else text_of(value)
    if not text.isprintable():
        text = json.dumps(text, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _varying(entries: list[Entry]) -> list[str]:
    """The keys in which the entries differ, those with the fewest different values first: they tell groups apart."""
    documents = [entry.document() for entry in entries]
    keys = dict.fromkeys(key for document in documents for key in document)
    counts = {key: len({text_of(document.get(key)) for document in documents}) for key in keys}
    varying = [key for key in keys if key not in ("job_id", "method") and counts[key] > 1]
    kept = sorted(varying, key=counts.__getitem__)[: _MOST_COLUMNS - 2]
    return [key for key in varying if key in kept] or [key for key in keys if len(entries) == 1][2:_MOST_COLUMNS]
