"""Runs a week of a lab in a minute or two, and compares what was expected with what was seen."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import accounts
import page
from days import DAYS
from lab import ADA, lab_at
from table import Table
from views import week_of_the_page


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/week", description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the lab is made, and stays; a new directory")
    parser.add_argument("--no-browser", action="store_true", help="take no pictures of the page")
    options = parser.parse_args()
    if shutil.which("gcc") is None:
        sys.exit("scripts/week: gcc is not installed: it builds the stand-in for NVIDIA's library")
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return week(options.keep.resolve(), with_browser=not options.no_browser)
    with tempfile.TemporaryDirectory() as folder:
        return week(Path(folder).resolve(), with_browser=not options.no_browser)


def week(folder: Path, *, with_browser: bool) -> int:
    table, began_s = Table(), time.monotonic()
    with lab_at(folder / "lab") as lab:
        for day in DAYS:
            table.day = day.__name__.capitalize()
            print(f"{time.monotonic() - began_s:5.1f} s  {table.day}: {day.__doc__}", flush=True)
            day(lab, table)
        table.day = "the week"
        print(f"{time.monotonic() - began_s:5.1f} s  What the week comes to")
        accounts.notices(lab, table)
        accounts.ledger(lab, table)
        week_of_the_page(lab, table)
        accounts.results(lab, table, folder)
        accounts.leftovers(lab, table)
        page.refusals(lab, table)
        if with_browser:
            page.pictures(lab, table, folder)
        print(f"\n{lab.run(ADA, 'usage')}\n{table.text()}\n")
    met = sum(row.is_right for row in table.rows)
    print(f"{met} of {len(table.rows)} expectations met, {time.monotonic() - began_s:.0f} s")
    return 0 if met == len(table.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
