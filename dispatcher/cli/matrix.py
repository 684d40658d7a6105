"""`dispatcher matrix make | check | show | tune | trials`: manifests, sweep files, adaptive sweeps."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher import contract
from dispatcher.base.messages import counted
from dispatcher.base.terminal import one_line
from dispatcher.base.users import user_name
from dispatcher.base.values import text_of
from dispatcher.cli.common import json_option, layout, where_option
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.manifest_target import refuse_other_files
from dispatcher.cli.printing import print_json, print_rows
from dispatcher.cli.tune import trials, tune
from dispatcher.config import Config, Method, interpreter, load_config, python_environment
from dispatcher.errors import ManifestError
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Limits
from dispatcher.matrix.manifest import Manifest, load_manifest, write_manifest
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.doctor.submitted_jobs import Examined


@click.group()
def matrix() -> None:
    """Create, check and show manifests; run adaptive sweeps."""


matrix.add_command(tune)
matrix.add_command(trials)


@matrix.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The manifest to write [default: the workspace's]."
)
@json_option
def make(sweep: Path, output: Path | None, as_json: bool) -> None:
    """Write the manifest that the sweep file SWEEP expands to, unless `matrix check` would refuse it.

    An older manifest is replaced, any other file is not. Its jobs stay whose they are; new ones are yours, unless the
    sweep names another `user`.
    """
    from dispatcher.base.files import read_plain
    from dispatcher.matrix.faults import respelt
    from dispatcher.matrix.owners import with_owners
    from dispatcher.matrix.sweep import expand

    config = load_config(layout())
    target = output or config.matrix
    refuse_other_files(target, sweep, config.layout)

    def refuse_faults(manifest: Manifest) -> None:
        faults, _ = _faults(config, manifest)
        if faults:
            raise ManifestError(f"{target}, which was not written", faults)

    documents = with_owners(expand(sweep), user_name(), target)
    for line in respelt(read_plain(sweep)):
        click.echo(f"warning: {one_line(line)}", err=True)
    manifest = write_manifest(target, documents, known_ids(config.layout), refuse_faults)
    if as_json:
        print_json({"manifest": target, **_sizes(manifest)})
    else:
        click.echo(f"{target}: {_count(manifest.entries.values())}")


@matrix.command()
@click.argument("manifest", required=False, type=click.Path(path_type=Path))
@json_option
@click.pass_context
def check(context: click.Context, manifest: Path | None, as_json: bool) -> None:
    """List all faults of MANIFEST, and parameters that no script reads. The exit status is 1 if there are faults.

    A parameter that nothing reads is a fault if it looks misspelt, such as `time_limt`. Without MANIFEST, the jobs of
    `dispatcher submit -- COMMAND` are checked too.
    """
    config = load_config(layout())
    findings = _Findings(as_json=as_json)
    found = _submitted(config) if manifest is None else None
    if found is not None:
        _check_submitted(config, found, findings)
    entries = () if found is None else found.entries
    if manifest is None and config.layout.submitted_manifest.exists() and not config.matrix.exists():
        _warn(config, entries, findings)
        findings.note(f"there is no {config.matrix}: only the jobs of `dispatcher submit` are checked")
    else:
        _check_manifest(config, manifest or config.matrix, entries, findings)
    if as_json:
        print_json({"manifests": findings.manifests, "notes": findings.notes})
    if not all(one["ok"] for one in findings.manifests):
        context.exit(1)


class _Findings:
    """What `check` has found; printed at once, or kept for `--json`."""

    def __init__(self, *, as_json: bool) -> None:
        self._prints = not as_json
        self.manifests: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def note(self, text: str, kind: str = "note") -> None:
        self.notes.append(text)
        if self._prints:
            click.echo(f"{kind}: {one_line(text)}", err=True)

    def sound(self, path: Path, sizes: dict[str, Any], text: str) -> None:
        self.manifests.append({"manifest": path, "ok": True, **sizes, "faults": []})
        if self._prints:
            click.echo(f"{path}: {text}")

    def faulty(self, where: str, faults: Sequence[str]) -> None:
        self.manifests.append({"manifest": where, "ok": False, "faults": [*faults]})
        if self._prints:
            click.echo(ManifestError(where, [*map(one_line, faults)]), err=True)


def _submitted(config: Config) -> Examined | None:
    from dispatcher.doctor.submitted_jobs import examine

    return examine(config)


def _check_submitted(config: Config, found: Examined, findings: _Findings) -> None:
    path = config.layout.submitted_manifest
    for line in found.notes:
        findings.note(f"{path.name}: {line}")
    if found.faults:
        findings.faulty(str(path), found.faults)
    else:
        findings.sound(path, {"jobs": len(found.entries)}, counted(len(found.entries), "job"))


def _warn(config: Config, entries: Collection[Entry], findings: _Findings) -> None:
    """Of limits on keys that no entry has, and of checkpoints on disks that vanish."""
    from dispatcher.pod.placing import vanishing

    for line in (*Limits.of(config).unknown(entries), *vanishing(config, entries, config.hosts.hosts)):
        findings.note(line, "warning")


def _check_manifest(config: Config, path: Path, submitted: tuple[Entry, ...], findings: _Findings) -> None:
    """Check a manifest. Limits may also be on keys that only submitted jobs have."""
    try:
        loaded = load_manifest(path, known_ids(config.layout))
    except ManifestError as error:
        findings.faulty(error.where, error.problems)
        return
    faults, notes = _faults(config, loaded)
    _warn(config, (*loaded.entries.values(), *submitted), findings)
    for line in notes:
        findings.note(line)
    if faults:
        findings.faulty(str(loaded.path), faults)
    else:
        findings.sound(loaded.path, _sizes(loaded), _count(loaded.entries.values()))


@matrix.command()
@click.argument("manifest", required=False, type=click.Path(path_type=Path))
@where_option
@json_option
def show(manifest: Path | None, where: Where, as_json: bool) -> None:
    """Show the jobs of MANIFEST with the parameters in which they differ."""
    config = load_config(layout())
    from dispatcher.query.values import check_users

    loaded = load_manifest(manifest or config.matrix, known_ids(config.layout))
    check_users(where, lambda: {entry.user for entry in loaded.entries.values() if entry.user is not None})
    entries = [entry for entry in loaded.entries.values() if where.holds(entry.value)]
    if as_json:
        lines = [json.dumps(entry.document(), ensure_ascii=False) for entry in entries]
        click.echo("[\n" + ",\n".join(lines) + "\n]" if lines else "[]")
        return
    if entries:
        _print_table(entries)
    click.echo(f"{_count(entries)} of {len(loaded.entries)}" if where else _count(entries))


def known_ids(where: Layout) -> frozenset[str]:
    """The job ids of the status file, which other jobs may need; empty when it cannot be read.

    Commands that read the run state report what is wrong with the file.
    """
    import msgspec

    try:
        content = msgspec.json.decode(where.status_file.read_bytes(), type=dict[str, msgspec.Raw])
    except (OSError, ValueError, RecursionError):
        return frozenset()
    return frozenset(content)


def _faults(config: Config, manifest: Manifest) -> tuple[list[str], Iterable[str]]:
    """What is wrong with a manifest that could be read, and the parameters that no script reads."""
    from dispatcher.templates.check import check_entries

    findings = check_entries(config, manifest.entries.values(), values=True)
    return [*findings.faults, *findings.misspelt, *_job_faults(config, manifest)], findings.notes


def _job_faults(config: Config, manifest: Manifest) -> list[str]:
    """Faults of the entries with a `job`: unknown job classes and configurations that their class refuses.

    Checked in another process, by the interpreter that runs the job, because the jobs' code may import JAX.
    """
    alike: dict[Hashable, tuple[Method, list[dict[str, Any]]]] = {}
    for entry in manifest.entries.values():
        if entry.job and entry.command is None:
            method = config.method(entry.method)
            key = method.python, tuple(method.env.items())
            alike.setdefault(key, (method, []))[1].append(entry.document())
    return [fault for method, entries in alike.values() for fault in _ask(config.layout.root, method, entries)]


def _ask(root: Path, method: Method, entries: list[dict[str, Any]]) -> list[str]:
    try:
        done = subprocess.run(
            [interpreter(method.python), "-P", "-m", "dispatcher.runtime", "check"],
            input=json.dumps(entries),
            cwd=root,
            env={**python_environment(method), contract.ROOT: os.fspath(root)},
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        # A missing interpreter has been reported as a fault of the method.
        return []
    if done.returncode:
        last = (done.stderr.strip() or "no reason given").splitlines()[-1]
        click.echo(f"warning: the job classes could not be checked: {last}", err=True)
        return []
    # The lines above it are what the jobs' own modules print on import.
    found = json.loads(done.stdout.splitlines()[-1])
    return list(dict.fromkeys(f"{job_id}: {fault}" for job_id, faults in found.items() for fault in faults))


def _sizes(manifest: Manifest) -> dict[str, Any]:
    """How many jobs it has, of which methods."""
    entries = manifest.entries.values()
    return {"jobs": len(entries), "methods": Counter(entry.method for entry in entries)}


def _count(entries: Iterable[Entry]) -> str:
    """`24 jobs (fft 12, lora 12)`."""
    methods = Counter(entry.method for entry in entries)
    listed = ", ".join(f"{method} {count}" for method, count in methods.items())
    return counted(methods.total(), "job") + (f" ({listed})" if listed else "")


def _print_table(entries: list[Entry]) -> None:
    varying = _varying(entries)
    columns = ["job_id", "method", *varying]
    # Keys with few different values form groups: those with the most have no room first.
    narrowing = Narrowing(drop=sorted(varying, key=lambda key: -varying[key]), keep=("job_id", "method"))
    rows = [{column: _cell(entry.value(column)) for column in columns} for entry in entries]
    print_rows(rows, "plain", columns, narrowing=narrowing)


def _cell(value: object) -> str:
    """The value on one line."""
    text = "" if value is None else text_of(value)
    if not text.isprintable():
        text = json.dumps(text, ensure_ascii=False)
    return text


def _varying(entries: list[Entry]) -> dict[str, int]:
    """The keys in which the entries differ, and how many different values each has; all keys of a single entry."""
    documents = [entry.document() for entry in entries]
    keys = dict.fromkeys(key for document in documents for key in document if key not in ("job_id", "method"))
    counts = {key: len({text_of(document.get(key)) for document in documents}) for key in keys}
    return {key: count for key, count in counts.items() if count > 1 or len(entries) == 1}
