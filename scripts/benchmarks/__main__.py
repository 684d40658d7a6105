"""The command line of the benchmark; see `scripts/bench --help`."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click

import benchmarks
from benchmarks import machine, report
from benchmarks.bench import Bench, working_directory
from benchmarks.figures import BenchError, Figure, Skipped
from benchmarks.rows import ROWS
from dispatcher.outlets.processes import adopt_orphans

_CHECKOUT = Path(__file__).resolve().parents[2]
_INTERRUPTED = 130
# \b: click leaves the lines of a paragraph as they are.
_HELP = "\n\n".join(f"\b\n{paragraph}" for paragraph in (benchmarks.__doc__ or "").split("\n\n"))


@click.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("rows", nargs=-1, metavar="[ROW]...", type=click.Choice(list(ROWS)))
@click.option("--quick", is_flag=True, help="Few rounds: to see whether it works, not how fast it is.")
@click.option("--list", "only_list", is_flag=True, help="Name the rows.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("bench_results.json"),
    show_default=True, help="Where the samples go.",
)  # fmt: skip
@click.option(
    "--dir", "parent", type=click.Path(file_okay=False, path_type=Path), default=_CHECKOUT / "build",
    help="Work below this directory, on the disk that is to be measured.  [default: build/ of the checkout]",
)  # fmt: skip
@click.option("--hyperqueue", metavar="PYTHON", help="An interpreter that has the package `hyperqueue`.")
def main(rows: tuple[str, ...], quick: bool, only_list: bool, out: Path, parent: Path, hyperqueue: str | None) -> None:
    if only_list:
        for name, measure in ROWS.items():
            click.echo(f"{name:12}{measure.__doc__}")
        return
    # A daemon that a compared tool leaves behind becomes a child of this process, and can be stopped.
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_INTERRUPTED))
    results: dict[str, list[Figure]] = {}
    try:
        with working_directory(parent.resolve()) as directory:
            known = machine.facts(directory)
            for name in dict.fromkeys(rows or ROWS):
                say = _progress(name)
                results[name] = _measure(name, Bench(directory, quick, say, hyperqueue))
    except KeyboardInterrupt:
        click.echo("interrupted: these rows were done", err=True)
    click.echo(machine.summary(known))
    click.echo(report.table(results))
    report.write_json(out, known, quick, results)
    click.echo(f"every sample: {out}")


def _measure(name: str, bench: Bench) -> list[Figure]:
    figures = []
    try:
        figures.extend(ROWS[name](bench))
    except Skipped as reason:
        figures.append(Figure(what=name, note=f"skipped: {reason}"))
    except BenchError as error:
        figures.append(Figure(what=name, note=f"FAILED: {error}"))
    return figures


def _progress(row: str):
    begun = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"{time.monotonic() - begun:6.1f} s  {row}: {text}", err=True)

    return say


if __name__ == "__main__":
    main()
