"""The command line of the benchmark; see `scripts/bench --help`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

import benchmarks
from benchmarks import machine, report
from benchmarks.bench import Bench, Size, working_directory
from benchmarks.figures import BenchError, Figure, Skipped
from benchmarks.rows import ROWS
from dispatcher.errors import DispatcherError
from dispatcher.outlets.local.processes import adopt_orphans

_CHECKOUT = Path(__file__).resolve().parents[2]
_INTERRUPTED = 130
# \b: click leaves the lines of a paragraph as they are.
_HELP = "\n\n".join(f"\b\n{paragraph}" for paragraph in (benchmarks.__doc__ or "").split("\n\n"))


@click.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("rows", nargs=-1, metavar="[ROW]...", type=click.Choice(list(ROWS)))
@click.option(
    "--quick", "size", flag_value=Size.QUICK.value, help="Few rounds: to see whether it works, not how fast it is."
)
@click.option("--smallest", "size", flag_value=Size.SMALLEST.value, hidden=True)
@click.option("--list", "only_list", is_flag=True, help="Name the rows.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("bench_results.json"),
    show_default=True, help="Where the samples go.",
)  # fmt: skip
@click.option(
    "--dir", "parent", type=click.Path(file_okay=False, path_type=Path), default=_CHECKOUT / "build",
    help="Work below this directory, on the disk that is to be measured.  [default: build/ of the checkout]",
)  # fmt: skip
def main(rows: tuple[str, ...], size: str | None, only_list: bool, out: Path, parent: Path) -> None:
    if only_list:
        for name, measure in ROWS.items():
            click.echo(f"{name:12}{measure.__doc__}")
        return
    # A daemon that a compared tool leaves behind becomes a child of this process, and can be stopped.
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_INTERRUPTED))
    known = machine.facts(_CHECKOUT)
    chosen = Size(size or Size.THOROUGH)
    results: dict[str, list[Figure]] = {}
    interrupted = False
    try:
        with working_directory(parent.resolve()) as directory:
            known = machine.facts(directory)
            for name in dict.fromkeys(rows or ROWS):
                results[name] = []
                _measure(name, Bench(directory, chosen, _progress(name)), results[name])
    except KeyboardInterrupt:
        interrupted = True
        click.echo("interrupted: this is what was measured until then", err=True)
    click.echo(machine.summary(known))
    click.echo(report.table(results))
    report.write_json(out, known, chosen.value, results)
    click.echo(f"every sample: {out}")
    sys.exit(_INTERRUPTED if interrupted else 0)


def _measure(name: str, bench: Bench, figures: list[Figure]) -> None:
    """Add the figures of a row; one that cannot be measured does not keep the others from it."""
    try:
        for figure in ROWS[name](bench):
            figures.append(figure)
    except Skipped as reason:
        figures.append(Figure(what=name, note=f"skipped: {reason}"))
    except (BenchError, DispatcherError, OSError, subprocess.SubprocessError) as error:
        figures.append(Figure(what=name, note=f"FAILED: {error}"))


def _progress(row: str) -> Callable[[str], None]:
    begun = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"{time.monotonic() - begun:6.1f} s  {row}: {text}", err=True)

    return say


if __name__ == "__main__":
    main()
