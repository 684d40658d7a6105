"""Pictures of results: they show what is missing, and the same results make the same file."""

from __future__ import annotations

import html
import math
import re
import sys
from array import array

import pytest

from dispatcher.errors import UsageError
from dispatcher.query.curves import Curve, mean_curves
from dispatcher.query.metrics import Series
from dispatcher.query.pivot import cells
from dispatcher.query.plots.curves import draw_curves
from dispatcher.query.plots.tables import draw_bars, draw_heatmap

ROWS = [
    *({"job_id": f"a{n}", "lang": "czech", "method": "fft", "loss": n} for n in (1, 2, 3)),
    {"job_id": "b", "lang": "czech", "method": "lora", "loss": 4.0},
    {"job_id": "c", "lang": "czech", "method": "lora"},
    {"job_id": "d", "lang": "greek", "method": "fft", "loss": math.nan},
]
CELLS = cells(ROWS, ["lang"], ["method"], ["loss"])


def texts(path):
    """The texts of a picture: as letters, which matplotlib names in comments."""
    return re.findall(r"<!-- (.+?) -->", path.read_text())


def series(job, values, steps=None):
    steps = steps or range(1, len(values) + 1)
    return Series(job, "loss", array("q", steps), array("d", values), array("d", values), array("q", [1] * len(values)))


def test_bars_say_how_many_of_the_jobs_they_show(tmp_path):
    path = tmp_path / "bars.svg"
    draw_bars(str(path), CELLS, ["lang"], ["method"], ["loss"])
    found = texts(path)
    assert [text for text in found if "/" in text and "N" not in text] == ["3/3", "0/1", "1/2"]
    assert {"czech", "greek", "fft", "lora", "lang", "method", "loss"} <= set(found)
    assert "<pattern" in path.read_text(), "what is missing is hatched"


def test_a_heat_map_has_a_text_in_every_cell(tmp_path):
    path = tmp_path / "heat.svg"
    draw_heatmap(str(path), CELLS, ["lang"], ["method"], ["loss"])
    found = texts(path)
    for text in ("2.0 ± 1.0", "(3 of 3)", "4", "(1 of 2)", "0 of 1", "no job"):
        assert any(text in one for one in found), (text, found)
    assert path.read_text().count("<pattern") >= 1, "what is missing is hatched"


def test_curves_say_how_many_jobs_and_where_some_are_missing(tmp_path):
    path = tmp_path / "curves.svg"
    groups = {"a": ("fft",), "b": ("fft",), "c": ("fft",), "d": ("lora",)}
    curves = mean_curves(groups, [series("a", [3, 2, 1]), series("b", [5, math.nan])])
    draw_curves(str(path), curves, ["method"], "eval_time_s")
    found = texts(path)
    for text in ("fft (2 of 3 jobs)", "lora (0 of 1 jobs): missing", "eval_time (s)", "step"):
        assert text in found, (text, found)
    assert any("thin: some jobs have no value there; x: a job has NaN or infinity" in text for text in found)


STRANGE = ("$x_$ y", "_hidden", "50 % \\alpha", "größer", "<!-- & -->")


@pytest.mark.parametrize("word", STRANGE)
def test_texts_are_data(tmp_path, word, recwarn):
    rows = [
        {"job_id": str(n), word: value, "m": n, word + "2": float(n)}
        for n, value in enumerate((word, "plain", "", None))
    ]
    grid = cells(rows, [word], ["m"], [word + "2"])
    bars = cells(rows, ["m"], [word], [word + "2"])
    told = []
    draw_heatmap(str(tmp_path / "heat.svg"), grid, [word], ["m"], [word + "2"], told.append)
    draw_bars(str(tmp_path / "bars.svg"), bars, ["m"], [word], [word + "2"], told.append)
    curves = mean_curves({"a": (word,), "b": ("plain",)}, [series("a", [1, 2]), series("b", [2, 3])])
    draw_curves(str(tmp_path / "curves.svg"), curves, [word], word, told.append)
    for name in ("heat", "bars", "curves"):
        found = html.unescape(" ".join(texts(tmp_path / f"{name}.svg")))
        assert word.replace("--", "- -") in found or word in found, (name, found)
    assert not told and not recwarn.list


def test_letters_without_a_font_are_told_and_others_have_one(tmp_path, recwarn, monkeypatch):
    """On a host without fonts for Chinese, and with a font that matplotlib does not have."""
    import matplotlib.font_manager as fonts

    own = [one for one in fonts.fontManager.ttflist if one.name.startswith(("DejaVu", "Last Resort"))]
    monkeypatch.setattr(fonts.fontManager, "ttflist", own)
    rows = [{"job_id": "a", "lang": "语言", "loss": 1.0}, {"job_id": "b", "lang": "de", "loss": 2.0}]
    told = []
    draw_bars(str(tmp_path / "a.png"), cells(rows, ["lang"], [], ["loss"]), ["lang"], [], ["loss"], told.append)
    (note,) = told
    assert "no installed font has 言语" in note and "Noto Sans CJK" in note
    # U+1D504 is in one of the fonts of DejaVu, but not in the first one.
    math_letter = [{"job_id": "a", "lang": "\U0001d504", "loss": 1.0}]
    told.clear()
    draw_bars(str(tmp_path / "b.png"), cells(math_letter, ["lang"], [], ["loss"]), ["lang"], [], ["loss"], told.append)
    assert not recwarn.list


def test_steps_are_whole_numbers(tmp_path):
    path = tmp_path / "a.svg"
    for steps, last in (([0, 1, 2], "2"), ([2_000_000, 3_000_000, 4_000_000], "4000000")):
        curves = mean_curves({"a": ()}, [series("a", [0.5, 0.5, 0.5], steps)])
        draw_curves(str(path), curves, [], "loss")
        ticks = re.findall(r'<g id="xtick_.*?<!-- (.+?) -->', path.read_text(), re.S)
        assert last in ticks and all(tick.isdigit() for tick in ticks), ticks


def test_the_mean_is_over_the_jobs_that_have_a_value_at_the_step():
    (curve,) = mean_curves({"a": (), "b": ()}, [series("a", [1, 3, 5], [0, 10, 20]), series("b", [3, 5], [0, 20])])
    assert (curve.x, curve.means, curve.counts, curve.end) == ([0, 10, 20], [2, 3.5, 5], [2, 2, 2], 3)
    assert curve.stds == [pytest.approx(2**0.5), pytest.approx(0.5**0.5), 0]
    (curve,) = mean_curves({"a": (), "b": ()}, [series("a", [1, 3, 5]), series("b", [3, math.inf])])
    assert (curve.counts, curve.end, curve.nan) == ([2, 1, 1], 1, [2])


def test_nothing_is_made_up_beyond_what_was_recorded():
    one = Curve([10, 20, 30, 40], [1, 3, math.nan, 7])
    assert [one.at(step) for step in (5, 10, 15, 20, 25, 30, 35, 40, 45)] == [
        None, 1, 2, 3, None, None, None, 7, None,
    ]  # fmt: skip


def test_long_curves_have_as_many_points_as_can_be_seen():
    (curve,) = mean_curves({"a": ()}, [series("a", [float(n) for n in range(10_000)])])
    assert len(curve.x) == 2_000
    assert (curve.x[0], curve.x[-1]) == (1, 10_000)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_results_make_the_same_file(tmp_path, ending):
    paths = [tmp_path / f"{number}.{ending}" for number in range(2)]
    for path in paths:
        draw_bars(str(path), CELLS, ["lang"], ["method"], ["loss"])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert len(paths[0].read_bytes()) > 2_000
    assert sorted(tmp_path.iterdir()) == paths, "no temporary file is left"


def test_pictures_leave_the_users_settings_alone(tmp_path):
    import matplotlib as mpl

    mpl.rcParams["font.size"] = 33
    draw_heatmap(str(tmp_path / "a.png"), CELLS, ["lang"], ["method"], ["loss"])
    assert mpl.rcParams["font.size"] == 33
    assert "matplotlib.pyplot" not in sys.modules
    mpl.rcdefaults()


def test_what_nobody_could_read_is_not_drawn(tmp_path):
    many = [{"job_id": str(n), "seed": n, "loss": n} for n in range(300)]
    with pytest.raises(UsageError, match="300 x 1 bars are too many"):
        draw_bars(str(tmp_path / "a.png"), cells(many, ["seed"], [], ["loss"]), ["seed"], [], ["loss"])
    with pytest.raises(UsageError, match="300 curves cannot be distinguished"):
        draw_curves(
            str(tmp_path / "a.png"), mean_curves({row["job_id"]: (row["job_id"],) for row in many}, []), [], "x"
        )
    assert not list(tmp_path.iterdir())
