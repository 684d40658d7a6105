"""The page's files: what is vendored is what was published, nothing parses data as HTML, and a wheel has them all."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dispatcher.run_state.states import STATES
from dispatcher.web.pages import Pages
from dispatcher.web.states import state_files

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "dispatcher" / "web" / "static"
VENDOR = STATIC / "vendor"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
OWN = [path for path in FILES if VENDOR not in path.parents]
MODULES = [path for path in OWN if path.suffix == ".js"]
# What would run or parse text that comes from jobs.
PARSERS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser|createContextualFragment|setHTML"
    r"|\beval\b|new Function|setTimeout\(['\"]|javascript:"
)
IMPORT = re.compile(r"""(?:^import\s(?:[^;"']*\sfrom\s+)?|\bimport\()["']([^"']+)["']""", re.MULTILINE)
# Those that the server makes of the table of states.
MADE = [STATIC / name for name in state_files()]
# Lines of code, so that each file stays one idea.
MOST_LINES = 300


def name_of(path: Path) -> str:
    return str(path.relative_to(STATIC))


def test_what_is_vendored_is_what_was_published() -> None:
    vendored = json.loads((VENDOR / "vendored.json").read_text())
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    found.pop("vendored.json")
    assert found == vendored["sha256"]
    assert vendored["version"] in vendored["source"]
    assert "Permission is hereby granted, free of charge" in (VENDOR / "uPlot-LICENSE").read_text()


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_parses_no_data_as_html_or_code(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert PARSERS.findall(text) == []
    assert len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_imports_only_files_that_are_there(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert len(IMPORT.findall(text)) == len(re.findall(r"^import\s|\bimport\(", text, re.MULTILINE))
    for target in IMPORT.findall(text):
        assert target.startswith("."), target
        assert (module.parent / target).resolve() in [*FILES, *MADE], target


class References(HTMLParser):
    """What a page of HTML loads, and what of it a strict policy would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self._is_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value is not None]
        self.inline += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "style":
            self.inline.append(tag)
        self._is_script = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._is_script and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False


def test_the_page_has_nothing_inline_and_loads_only_its_own_files() -> None:
    page = References()
    page.feed((STATIC / "index.html").read_text(encoding="utf-8"))
    assert page.inline == []
    assert page.loaded
    for target in page.loaded:
        assert STATIC.parent / target in [*FILES, *MADE], target


def test_style_sheets_load_nothing_from_elsewhere() -> None:
    for sheet in OWN:
        if sheet.suffix == ".css":
            targets = re.findall(r"""(?:@import\s+|url\()["']?([^"')]+)""", sheet.read_text(encoding="utf-8"))
            assert all((sheet.parent / target).is_file() for target in targets), (sheet, targets)


def test_the_page_has_the_look_of_every_state() -> None:
    pages = Pages()
    script, style = (bytes(pages.static(f"states.{kind}", None).body).decode() for kind in ("js", "css"))
    known = json.loads(script.removeprefix("export const KNOWN = ").removesuffix(";\n"))
    assert list(known) == [state.value for state in STATES]
    for state, row in STATES.items():
        assert known[state]["path"] == row.look.path
        assert style.count(f"--{state}: ") == 2 and style.count(f".s-{state} ") == 2


def test_a_wheel_has_every_file() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["dispatcher.web"]
    missing = [name_of(path) for path in FILES if not any(_matches(f"static/{name_of(path)}", one) for one in patterns)]
    assert missing == []


def _matches(name: str, pattern: str) -> bool:
    # A pattern of setuptools does not go below a folder.
    return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)
