"""What all pictures have in common: colours, sizes, labels, and files that do not depend on when they are written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher.base import files
from dispatcher.errors import StorageError, UsageError
from dispatcher.query.results.frames import library

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Told apart with any kind of colour vision (Okabe and Ito, 2008).
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MISSING, GREY, LIGHT = "#D55E00", "#555555", "#E6E6E6"
HATCH: Final = "////"
# More than these look alike.
MOST_COLOURS: Final = 3 * len(COLOURS)
_DPI: Final = 150
# Times are left out of files.
_METADATA: Final[dict[str, dict[str, None]]] = {
    ".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}
}  # fmt: skip
_UNITS: Final = {"_s": "s", "_ms": "ms", "_h": "h", "_bytes": "bytes", "_mib": "MiB", "_gib": "GiB", "_pct": "%"}


Tell = Callable[[str], None]


def untold(_text: str) -> None:
    """Drops the text: the default of `tell`."""


def check_path(path: str) -> None:
    """Raise UsageError for a file of a kind that is not written."""
    if os.path.splitext(path)[1].lower() not in _METADATA:
        raise UsageError(f"--plot {path}: expected a file that ends with .png, .svg or .pdf")


@contextmanager
def canvas(path: str, width: float, height: float, tell: Tell) -> Iterator[Figure]:
    """A figure of this size in inches, which is written to the file at the end; no partial file is left.

    Texts in it are shown as they are. `tell` gets the letters that no installed font has.
    """
    matplotlib: Any = library("matplotlib", "--plot", "plot")
    figures: Any = library("matplotlib.figure", "--plot", "plot")
    library("matplotlib.backends.backend_agg", "--plot", "plot")
    ending = os.path.splitext(path)[1].lower()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"svg.hashsalt": "dispatcher", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
             "hatch.color": "#999999", "hatch.linewidth": 0.6, "text.parse_math": False}
        )  # fmt: skip
        figure = figures.Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
        yield figure
        without_font = _choose_fonts(figure)
        if without_font:
            tell(f"{path}: no installed font has {without_font}: install one for these letters, such as Noto Sans CJK")
        temporary = files.temporary_name(Path(path))
        try:
            with warnings.catch_warnings():
                # Reported above.
                warnings.filterwarnings("ignore", message="Glyph .* missing from")
                figure.savefig(temporary, format=ending[1:], metadata=_METADATA[ending])
            os.replace(temporary, path)
        except OSError as error:
            raise StorageError(f"{path}: the picture cannot be written: {error.strerror or error}") from error
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)


def add_legend(figure: Figure, labels: Sequence[str], title: str | None) -> None:
    """A legend of what was drawn with a label. Its texts come last: matplotlib leaves out what begins with `_`."""
    legend: Any = figure.legend(title=title, loc="outside right upper", frameon=False)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)


def _choose_fonts(figure: Any) -> str:
    """Give all texts fonts that have their letters; which letters none has."""
    texts = figure.findobj(library("matplotlib.text", "--plot", "plot").Text)
    missing = {letter for text in texts for letter in text.get_text() if not letter.isspace()}
    manager: Any = library("matplotlib.font_manager", "--plot", "plot")
    fonts: Any = library("matplotlib.ft2font", "--plot", "plot")
    chosen = []
    for entry in sorted(manager.fontManager.ttflist, key=_font_order):
        if not missing:
            break
        if entry.name.startswith("Last Resort"):
            # It has a box for every letter.
            continue
        try:
            letters = fonts.FT2Font(entry.fname).get_charmap()
        except (OSError, RuntimeError):
            continue
        found = {letter for letter in missing if ord(letter) in letters}
        if found:
            missing -= found
            chosen.append(entry.name)
    for text in texts:
        text.set_fontfamily(chosen)
    return "".join(sorted(missing))


def _font_order(entry: Any) -> tuple[object, ...]:
    """matplotlib's own font first; then plain ones without serifs."""
    return (entry.name != "DejaVu Sans", entry.style != "normal", str(entry.weight) not in ("400", "normal"),
            "Sans" not in entry.name, entry.name, entry.fname)  # fmt: skip


def style_of(number: int) -> dict[str, str]:
    """The colour of a group, and the dashes of its line once the colours are used up."""
    dashes = ("-", "--", ":")
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes[number // len(COLOURS) % len(dashes)]}


def with_unit(name: str) -> str:
    """`eval_time (s)` for `eval_time_s`: units are in names."""
    return next((f"{name.removesuffix(end)} ({unit})" for end, unit in _UNITS.items() if name.endswith(end)), name)


def words_of(key: Sequence[str]) -> str:
    return ", ".join(word or "(none)" for word in key)
