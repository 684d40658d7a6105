"""The tutorials, as a reader follows them (pages.py says how), and what other pages show of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import Reader, blocks
from tiny_runs import environment

import dispatcher.runtime

TUTORIALS = Path(dispatcher.runtime.__file__).parent / "tutorials"
PAGE = Path(__file__).parents[2] / "docs" / "jax.md"
# In whose workspace a tutorial goes on.
AFTER = {"7-analyse.md": "5-fine-tune.md"}


class Readers:
    """One reader for each workspace; a page is followed once."""

    def __init__(self, root: Path, cache: Path) -> None:
        self._root = root
        self._cache = cache
        self._followed: dict[str, Reader] = {}

    def follow(self, name: str) -> Reader:
        if name not in self._followed:
            before = AFTER.get(name)
            reader = self.follow(before) if before else Reader(self._root / Path(name).stem, environment(self._cache))
            reader.follow(TUTORIALS / name)
            self._followed[name] = reader
        return self._followed[name]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory, jax_cache: Path) -> Readers:
    return Readers(tmp_path_factory.mktemp("tutorials"), jax_cache)


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(path.name for path in TUTORIALS.glob("*.md")))
def test_a_tutorial_does_what_it_says(name: str, readers: Readers) -> None:
    readers.follow(name)


def test_a_tutorial_is_read_in_one_sitting() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in TUTORIALS.glob("*.md")}
    assert [name for name, lines in lengths.items() if lines >= 120] == []


def test_the_page_on_jax_shows_what_the_tutorials_do() -> None:
    text = PAGE.read_text(encoding="utf-8")
    pages = {path.name: path.read_text(encoding="utf-8") for path in TUTORIALS.glob("*.md")}
    assert len(pages) >= 7
    for name in pages:
        assert f"(../dispatcher/runtime/tutorials/{name})" in text, f"docs/jax.md does not lead to {name}"
    # tests/test_docs.py runs the others.
    shown = [block for block in blocks(text) if block.not_run is not None]
    assert shown
    for block in shown:
        assert any(block.text in page for page in pages.values()), f"no tutorial has this block:\n{block.text}"
