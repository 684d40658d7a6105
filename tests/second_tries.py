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
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

from beds.outcomes import CACHE

# A line each: time, commit, test, how it failed.
RECORD = Path(CACHE).with_name("dispatcher-tests") / "second-tries.tsv"
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
# Of the first try.
REPORT = Path("build/junit.xml")
LONGEST = 300


def failed() -> list[str]:
    return sorted(json.loads(LAST_FAILED.read_text(encoding="utf-8"))) if LAST_FAILED.exists() else []


def note(tests: list[str]) -> None:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = git.stdout.strip() or "?"
    now, why = time.strftime("%Y-%m-%d %H:%M"), reasons()
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    with open(RECORD, "a", encoding="utf-8") as file:
        file.writelines(f"{now}\t{commit}\t{test}\t{why.get(junit_name(test), '?')}\n" for test in tests)


def reasons() -> dict[tuple[str, str], str]:
    """How each test failed, on a line; nothing where there is no whole report."""
    found: dict[tuple[str, str], str] = {}
    try:
        cases = ET.parse(REPORT).iter("testcase")
    except (OSError, ET.ParseError):
        return found
    for case in cases:
        for failure in (*case.iter("failure"), *case.iter("error")):
            line = " ".join((failure.get("message") or failure.text or "?").split())
            found[case.get("classname", ""), case.get("name", "")] = line[:LONGEST]
    return found


def junit_name(test: str) -> tuple[str, str]:
    """A test's class and name, as pytest writes them: `a/b.py::C::t[x/y]` is `a.b.C` and `t[x/y]`."""
    path, _, rest = test.partition("::")
    bare, bracket, case = rest.partition("[")
    *classes, name = bare.split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *classes]), f"{name}{bracket}{case}"


def table() -> str:
    """The worst first."""
    if not RECORD.exists():
        return f"no test has passed on the second try yet ({RECORD})"
    found: defaultdict[str, list[list[str]]] = defaultdict(list)
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        when, commit, test, why = (*line.split("\t", 3), "?")[:4]
        found[test].append([when, commit, why])
    worst_first = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    lines = []
    for test, tries in worst_first:
        when, commit, why = tries[-1]
        lines += [f"{len(tries):5}  {when}  {commit:9}  {test}", f"       {why}"]
    return "\n".join([f"{'times':5}  {'last':16}  {'commit':9}  test, and how it failed", *lines])


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
