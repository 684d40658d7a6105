"""Bars with spread and heat maps, of results by the values of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dispatcher.base.messages import number_text
from dispatcher.errors import UsageError
from dispatcher.query.numbers import Spread
from dispatcher.query.pivot import Cells, Key
from dispatcher.query.plots.canvas import (
    COLOURS,
    GREY,
    HATCH,
    LIGHT,
    MISSING,
    MOST_COLOURS,
    Tell,
    add_legend,
    canvas,
    untold,
    with_unit,
    words_of,
)  # fmt: skip

_MOST_BARS: Final = 200
_MOST_CELLS: Final = 2_000


def draw_bars(
    path: str,
    cells: Cells,
    rows: Sequence[str],
    cols: Sequence[str],
    values: Sequence[str],
    tell: Tell = untold,
) -> None:
    """A bar per combination: its mean, the standard deviation, a dot per job, and n of N."""
    groups, hues = cells.down, cells.across
    if len(groups) * len(hues) > _MOST_BARS or len(hues) > MOST_COLOURS:
        raise UsageError(f"{len(groups)} x {len(hues)} bars are too many to read: choose fewer with --where")
    width = max(4.5, 1.6 + len(groups) * (0.35 + 0.42 * len(hues)))
    with canvas(path, min(width, 40.0), 1.0 + 3.0 * len(values), tell) as figure:
        for number, value in enumerate(values):
            axes: Any = figure.add_subplot(len(values), 1, number + 1)
            for place, across in enumerate(hues):
                _bars(axes, cells, value, across, (place, len(hues)))
            _label_bars(axes, groups, rows, value)
            if cols and number == 0:
                add_legend(figure, list(map(words_of, hues)) if len(hues) > 1 else [], words_of(cols))


def _bars(axes: Any, cells: Cells, value: str, across: Key, place: tuple[int, int]) -> None:
    number, of = place
    width = 0.8 / of
    # Above the axis, whatever the scale is.
    foot = axes.get_xaxis_transform()
    for x, down in enumerate(cells.down):
        spread = cells.spread(down, across, value)
        at = x - 0.4 + width * (number + 0.5)
        if spread is None:
            continue
        # What is missing is orange, so that three of four do not pass for all.
        tint = GREY if spread.n == spread.of else MISSING
        if spread.mean is None:
            axes.bar(at, 0.04, width * 0.92, transform=foot, fill=False, hatch=HATCH, edgecolor="#999999")
            axes.annotate(f"0/{spread.of}", (at, 0.05), xycoords=foot, ha="center", va="bottom", fontsize=7, color=tint)
            continue
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(at, spread.mean, width * 0.92, color=colour, alpha=0.75, hatch=_hatch(number), edgecolor="white")
        if spread.std is not None:
            axes.errorbar(at, spread.mean, yerr=spread.std, color="#222222", capsize=2.5, linewidth=1)
        numbers = cells.numbers[down, across, value]
        axes.plot([at] * len(numbers), numbers, ".", color="#222222", markersize=3, alpha=0.6)
        top = max(*numbers, spread.mean + (spread.std or 0), 0.0) if spread.mean >= 0 else 0.0
        axes.annotate(
            f"{spread.n}/{spread.of}", (at, top), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
            fontsize=7, color=tint,
        )  # fmt: skip
    if of > 1:
        axes.bar(0, 0, 0, color=COLOURS[number % len(COLOURS)], alpha=0.75, hatch=_hatch(number), edgecolor="white",
                 label=str(number))  # fmt: skip


def _hatch(number: int) -> str | None:
    return (None, "...", "xxx")[number // len(COLOURS) % 3]


def _label_bars(axes: Any, groups: Sequence[Key], rows: Sequence[str], value: str) -> None:
    names = [words_of(key) for key in groups]
    is_long = sum(map(len, names)) > 12 * max(6, len(names))
    axes.set_xticks(range(len(groups)), names, rotation=30 if is_long else 0, ha="right" if is_long else "center")
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xlabel(words_of(rows))
    axes.set_ylabel(with_unit(value))
    axes.axhline(0, color="#222222", linewidth=0.8)
    axes.margins(y=0.12)
    axes.set_title("mean ± std of a sample, a dot per job, n/N jobs", fontsize=8, color=GREY, loc="left")


def draw_heatmap(
    path: str,
    cells: Cells,
    rows: Sequence[str],
    cols: Sequence[str],
    values: Sequence[str],
    tell: Tell = untold,
) -> None:
    """A cell per combination: its mean, also as a colour, the standard deviation, n of N; hatched where missing."""
    down, across = cells.down, cells.across
    if len(down) * len(across) > _MOST_CELLS:
        raise UsageError(f"{len(down)} x {len(across)} cells are too many to read: choose fewer with --where")
    longest = max((len(words_of(key)) for key in down), default=0)
    width = 2.2 + 0.07 * longest + max(3.0, 1.05 * len(across))
    with canvas(path, min(width, 40.0), (1.3 + max(1.5, 0.62 * len(down))) * len(values), tell) as figure:
        for number, value in enumerate(values):
            axes: Any = figure.add_subplot(len(values), 1, number + 1)
            spreads = [[cells.spread(one, other, value) for other in across] for one in down]
            _heat(figure, axes, spreads, value)
            axes.set_xticks(range(len(across)), [words_of(key) for key in across])
            axes.set_yticks(range(len(down)), [words_of(key) for key in down])
            axes.set_xlabel(words_of(cols))
            axes.set_ylabel(words_of(rows))
            axes.set_title("mean ± std of a sample (n of N jobs)", fontsize=8, color=GREY, loc="left")


def _heat(figure: Any, axes: Any, spreads: list[list[Spread | None]], value: str) -> None:
    shown = [[float("nan") if cell is None or cell.mean is None else cell.mean for cell in row] for row in spreads]
    means = [cell.mean for row in spreads for cell in row if cell is not None and cell.mean is not None]
    low, high = (min(means), max(means)) if means else (0.0, 1.0)
    image = axes.imshow(shown, cmap="viridis", aspect="auto", vmin=low, vmax=high)
    if means:
        figure.colorbar(image, ax=axes, label=with_unit(value))
    for y, row in enumerate(spreads):
        for x, cell in enumerate(row):
            if cell is None or cell.mean is None:
                edges = [x - 0.5, x + 0.5]
                axes.fill_between(edges, y - 0.5, y + 0.5, fc=LIGHT, hatch=HATCH, ec="#999999", linewidth=0)
            axes.text(x, y, _cell_text(cell), ha="center", va="center", fontsize=7.5, color=_ink(cell, low, high))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _cell_text(cell: Spread | None) -> str:
    if cell is None:
        return "no job"
    if cell.mean is None:
        return f"0 of {cell.of}"
    numbers, _, count = str(cell).rpartition(" (")
    return f"{numbers or number_text(cell.mean)}\n({count}"


def _ink(cell: Spread | None, low: float, high: float) -> str:
    """White on the dark half of the colours."""
    is_dark = cell is not None and cell.mean is not None and cell.mean - low < 0.55 * (high - low)
    return "white" if is_dark else "#111111"
