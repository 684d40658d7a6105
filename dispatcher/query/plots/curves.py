"""Curves over steps: the mean of each group as a line, its standard deviation as a band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatcher.errors import UsageError
from dispatcher.query.curves import MeanCurve
from dispatcher.query.plots.canvas import (
    GREY,
    MOST_COLOURS,
    Tell,
    add_legend,
    canvas,
    style_of,
    untold,
    with_unit,
    words_of,
)


def draw_curves(path: str, curves: Sequence[MeanCurve], keys: Sequence[str], metric: str, tell: Tell = untold) -> None:
    """A line per group; thin where some of its jobs have ended already, a cross where a job had no finite value."""
    if len(curves) > MOST_COLOURS:
        raise UsageError(f"{len(curves)} curves cannot be distinguished: use --where, or group by fewer keys")
    with canvas(path, 7.0, 4.2, tell) as figure:
        axes: Any = figure.add_subplot(1, 1, 1)
        labels = [_draw(axes, curve, number) for number, curve in enumerate(curves)]
        if all(float(step).is_integer() for curve in curves for step in curve.x):
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.ticklabel_format(axis="x", style="plain", useOffset=False)
        axes.set_xlabel("step")
        axes.set_ylabel(with_unit(metric))
        axes.margins(x=0.02)
        axes.set_title(_told(curves), fontsize=8, color=GREY, loc="left")
        add_legend(figure, labels, words_of(keys) or None)


def _draw(axes: Any, curve: MeanCurve, number: int) -> str:
    """Draw the curve; what it is called in the legend."""
    style = style_of(number)
    count = "1 job" if curve.n == curve.of == 1 else f"{curve.n} of {curve.of} jobs"
    label = f"{words_of(curve.key)} ({count})" if curve.key else count
    if not curve.x:
        axes.plot([], [], label=str(number), **style)
        return f"{label}: missing"
    end = curve.end
    axes.plot(curve.x[:end], curve.means[:end], linewidth=1.6, label=str(number), **style)
    if end < len(curve.x):
        # One point earlier, so that the two parts meet.
        first = max(0, end - 1)
        axes.plot(curve.x[first:], curve.means[first:], linewidth=0.7, **style)
    low = [mean - std for mean, std in zip(curve.means, curve.stds, strict=True)]
    high = [mean + std for mean, std in zip(curve.means, curve.stds, strict=True)]
    axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.18, linewidth=0)
    if curve.nan:
        axes.plot(curve.nan, [0.015] * len(curve.nan), "x", color=style["color"], markersize=5,
                  transform=axes.get_xaxis_transform(), clip_on=False)  # fmt: skip
    return label


def _told(curves: Sequence[MeanCurve]) -> str:
    told = ["mean, and std of a sample as band"]
    if any(curve.end < len(curve.x) for curve in curves):
        told.append("thin: some jobs have no value there")
    if any(curve.nan for curve in curves):
        told.append("x: a job has NaN or infinity")
    return "\n".join(filter(None, (told[0], "; ".join(told[1:]))))
