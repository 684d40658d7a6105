"""The tables of docs/, and the lists of keys in pages, have what the types say of the keys.

With DISPATCHER_WRITE_GOLDEN=1 in the environment the tables are written anew: read their changes before they are
committed. Links are written as from docs/, and made relative to the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from key_tables import table

from dispatcher import config
from dispatcher.base.schema.reading import fields
from dispatcher.hosts.types import Hosts
from dispatcher.job_keys import JobKeys, Resources
from dispatcher.matrix.entry import KEYS, UNDIGESTED, Entry
from dispatcher.matrix.sweep import Sweep, SweepFile
from dispatcher.notify_config import Notify, Target
from dispatcher.tuning.halving import Halving
from dispatcher.tuning.settings import Settings

DOCS: Final = Path(__file__).parent.parent / "docs"
README: Final = DOCS.parent / "dispatcher" / "cli" / "readmes" / "matrix.md"
# The page, the text before the table, and the keys in it.
TABLES: Final[list[tuple[str, str, str]]] = [
    ("entries.md", "All other keys are parameters of the training script.\n", table(Entry, fields(JobKeys))),
    ("entries.md", "## Resources\n", table(Resources)),
    ("configuration.md", "## Settings\n", table(config.Config) + table(Hosts).split("|---|---|---|\n")[1]),
    ("configuration.md", "## Methods\n", table(config.Method)),
    ("notify.md", "## Keys\n", table(Notify)),
    ("notify.md", "## Targets\n", table(Target)),
    ("sweeps.md", "## Keys of the file\n", table(SweepFile)),
    ("sweeps.md", "## Keys of a sweep\n", table(Sweep)),
    ("tuning.md", "## Keys of the file\n", table(Settings)),
    ("tuning.md", "once for each trial and rung.\n", table(Halving)),
]


@pytest.mark.parametrize(("page", "after", "wanted"), TABLES, ids=[f"{page}-{after}" for page, after, _ in TABLES])
def test_the_tables_of_the_pages_have_what_the_types_say(page: str, after: str, wanted: str) -> None:
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    before, heading, rest = text.partition(after)
    assert heading, f"{page} has no {after!r}"
    found = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert found, f"{page}: no table after {after!r}"
    wanted = wanted.replace(f"]({page}#", "](#")
    if os.environ.get("DISPATCHER_WRITE_GOLDEN"):
        path.write_text(before + heading + rest[: found.start()] + wanted + rest[found.end() :], encoding="utf-8")
    else:
        assert found[0] == wanted


def listed(keys: Iterable[str], last: str) -> str:
    """`a`, `b` and `c`."""
    *others, end = [f"`{key}`" for key in keys]
    return f"{', '.join(others)} {last} {end}"


# The page, the words around a list of keys, and that list.
LISTS: Final = [
    (README, r"(are required; )(.*?)( are read by the dispatcher;)", listed(KEYS, "and")),
    (
        DOCS / "entries.md",
        r"(\n\n)([^\n]*)( only say when, where,\n)",
        listed([k for k in KEYS if k in UNDIGESTED], "and"),
    ),
    (
        DOCS / "entries.md",
        r"(with another method, )(.*?)( than the manifest\nhas now)",
        listed([k for k in KEYS if k not in UNDIGESTED], "or"),
    ),
]


@pytest.mark.parametrize(("path", "around", "wanted"), LISTS, ids=["read", "scheduling", "digested"])
def test_the_lists_of_keys_are_complete(path: Path, around: str, wanted: str) -> None:
    text = path.read_text(encoding="utf-8")
    found = re.search(around, text)
    assert found, f"{path.name}: no list of keys"
    if os.environ.get("DISPATCHER_WRITE_GOLDEN"):
        path.write_text(text[: found.start(2)] + wanted + text[found.end(2) :], encoding="utf-8")
    else:
        assert found[2] == wanted
