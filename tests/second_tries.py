"""What failed at first and passed on the second try: kept for all runs of a user, because it hides a race.

    python tests/second_tries.py failed         the tests that failed last, a line each
    python tests/second_tries.py note TEST ...  these passed on the second try
    python tests/second_tries.py list           how often, and when last

`scripts/test` calls the first two in CI; `scripts/test --second-tries` is the last.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from beds.outcomes import CACHE

# A line each: time, commit, test.
RECORD = Path(CACHE).with_name("dispatcher-tests") / "second-tries.tsv"
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def failed() -> list[str]:
    return sorted(json.loads(LAST_FAILED.read_text(encoding="utf-8"))) if LAST_FAILED.exists() else []


def note(tests: list[str]) -> None:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = git.stdout.strip() or "?"
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    with open(RECORD, "a", encoding="utf-8") as file:
        file.writelines(f"{time.strftime('%Y-%m-%d %H:%M')}\t{commit}\t{test}\n" for test in tests)


def table() -> str:
    """The worst first."""
    if not RECORD.exists():
        return f"no test has passed on the second try yet ({RECORD})"
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        when, commit, test = line.split("\t", 2)
        found[test].append((when, commit))
    worst_first = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    lines = [f"{len(tries):5}  {tries[-1][0]}  {tries[-1][1]:9}  {test}" for test, tries in worst_first]
    return "\n".join([f"{'times':5}  {'last':16}  {'commit':9}  test", *lines])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["failed"]:
            print(*failed(), sep="\n")
        case ["note", *tests]:
            note(tests)
        case ["list"]:
            print(table())
        case _:
            sys.exit(__doc__)
