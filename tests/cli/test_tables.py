from __future__ import annotations

import csv
import io
import json

import pytest

from dispatcher.base.messages import number_text
from dispatcher.base.terminal import clip, clip_middle, one_line, width_of, wrap
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.tables import render

ROWS = [{"job": "1e5", "loss": 2.34567, "n": 3}, {"job": "b", "loss": None, "n": 12, "gpu": [2, 3]}]


def test_plain_aligns_numbers_and_leaves_names_alone():
    assert render(ROWS, "plain").splitlines() == [
        "job   loss   n  gpu",
        "---  -----  --  -----",
        "1e5  2.346   3",
        "b           12  [2,3]",
    ]


def test_plain_counts_columns_of_wide_letters():
    lines = render([{"a": "日本", "b": "x"}, {"a": "e\u0301", "b": "y"}], "plain").splitlines()
    assert lines[2:] == ["日本  x", "e\u0301     y"]


def test_colour_does_not_disturb_the_alignment():
    lines = render(ROWS, "plain", ("job", "n"), lambda name, cell: f"<{cell}>" if name == "job" else cell).splitlines()
    assert lines[2:] == ["<1e5>   3", "<b>    12"]


def test_github_and_latex_escape_what_would_break_the_table():
    rows = [{"error": "a|b_c & 5%\nnext"}]
    assert render(rows, "github").splitlines()[2] == "| a\\|b_c & 5% next |"
    assert r"a|b\_c \& 5\% next" in render(rows, "latex")


def test_csv_and_json_keep_everything():
    rows = [{"a": 'say "hi", twice', "b": 0.1234567891, "c": [1], "d": None}]
    assert list(csv.DictReader(io.StringIO(render(rows, "csv")))) == [
        {"a": 'say "hi", twice', "b": "0.1234567891", "c": "[1]", "d": ""}
    ]
    assert json.loads(render(rows, "json", ("a",))) == rows


def test_no_rows():
    assert render([], "plain", ("job", "state")) == "job  state\n---  -----"
    assert render([], "csv", ("job",)) == "job"
    assert json.loads(render([], "json")) == []
    assert "job" in render([], "github", ("job",))


def test_numbers():
    assert [number_text(n) for n in (0.000123456, 1.5, 12345.6, 1e300, float("nan"))] == [
        "0.0001235", "1.5", "12346", "1e+300", "nan",
    ]  # fmt: skip


LONG = "fft_greek_cfgB_s12_asr0.5_lr3e-4_warmup2000_cosine_main"
WIDE_ROWS = [
    {"job": LONG, "state": "running", "error": "RESOURCE_EXHAUSTED: 语言 " * 6, "step": 123456},
    {"job": "a", "state": "failed", "error": "größer", "step": 1},
]


@pytest.mark.parametrize("width", [*range(1, 40), 60, 79, 80, 200])
def test_a_plain_table_fits_every_width(width):
    text = render(WIDE_ROWS, "plain", width=width)
    assert max(map(width_of, text.splitlines())) <= width


def test_ids_shrink_in_the_middle_and_states_and_counts_never():
    assert render(WIDE_ROWS, "plain", width=60).splitlines() == [
        "job                   state    error                    step",
        "--------------------  -------  ---------------------  ------",
        "fft_greek_cf…ne_main  running  RESOURCE_EXHAUSTED: …  123456",
        "a                     failed   größer                      1",
    ]


def test_the_least_important_column_shrinks_first():
    rows = [{"job": "x" * 30, "why": "y" * 60, "error": "z" * 60}]

    def widths(shrink):
        return [
            len(rule) for rule in render(rows, "plain", width=140, narrowing=Narrowing(shrink)).splitlines()[1].split()
        ]

    assert widths(("why", "error", "job")) == [30, 46, 60]
    assert widths(("error", "why", "job")) == [30, 60, 46]
    assert widths(("job", "why", "error")) == [20, 56, 60]


def test_one_long_sentence_does_not_shorten_ids():
    rows = [{"job": "x" * 70, "changes": "short"}, {"job": "-", "changes": "y" * 300}]
    lines = render(rows, "plain", width=140, narrowing=Narrowing(("job", "changes"))).splitlines()
    assert lines[2].split() == ["x" * 70, "short"]
    assert lines[3].split() == ["-", "y" * 67 + "…"]


def test_columns_without_room_are_named():
    text = render(WIDE_ROWS, "plain", width=30, narrowing=Narrowing(("error", "job")))
    assert text.splitlines()[-1] == "(no room for: error)"
    assert "running" in text
    assert "123456" not in render(WIDE_ROWS, "plain", width=20, narrowing=Narrowing(("error", "job")))


def test_ids_that_differ_in_the_middle_stay_apart():
    rows = [{"job": f"distill_swahili_s{n}_lr3e-4_warmup2000_cosine_reference"} for n in range(10, 40)]
    ids = render(rows, "plain", width=20).splitlines()[2:]
    assert len(set(ids)) == len(rows)
    assert ids[0] == "distill_swahili_s10…"
    rows = [{"job": f"evaluation_of_the_large_reference_s{n}_greek"} for n in range(10, 40)]
    ids = render(rows, "plain", width=20).splitlines()[2:]
    assert len(set(ids)) == len(rows)
    assert all("…" in job for job in ids)


def headings(row, width, **narrowing):
    return render([row], "plain", width=width, narrowing=Narrowing(**narrowing)).splitlines()[0].split()


def test_columns_that_can_be_done_without_go_before_others_are_hard_to_read():
    row = {"job": "x" * 40, "host": "y" * 12, "attempt": 1, "loss": 1.25}
    assert headings(row, 60, drop=("attempt",)) == ["job", "host", "attempt", "loss"]
    assert headings(row, 49, drop=("attempt",)) == ["job", "host", "attempt", "loss"]
    assert headings(row, 48, drop=("attempt",)) == ["job", "host", "loss"]
    assert headings(row, 30, drop=("attempt", "host"), keep=("job", "loss")) == ["job", "loss"]


def test_a_column_that_is_kept_never_goes():
    row = {"time": "23:16:08", "by": "gpu-a", "event": "abandoned", "job": "x" * 40, "changes": "z" * 40}
    for width in range(23, 120):
        assert {"event", "job"} <= set(headings(row, width, shrink=("by", "job", "changes"), keep=("event", "job")))


def test_the_first_columns_of_a_pivot_table_never_go():
    row = {"lang": "finnish", "method": "distill", **dict.fromkeys(("queued", "submitted", "abandoned", "total"), 20)}
    for width in range(17, 80):
        assert headings(row, width, keep=("lang", "method"))[:2] == ["lang", "method"]
    # Headings become shorter before numbers are left out.
    assert headings(row, 47, keep=("lang", "method"))[2:] == ["queued", "submi…", "aband…", "total"]


def test_a_piped_table_has_no_limit():
    assert LONG in render(WIDE_ROWS, "plain")
    assert LONG in render(WIDE_ROWS, "github", width=20)


def test_a_long_message_takes_one_line_of_a_screen():
    banner = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n" * 20
    rows = [{"job": "a", "waits for": banner, "n": 1}, {"job": "b", "waits for": None, "n": 2}]
    assert max(map(len, render(rows, "plain", bare=True).splitlines())) < 320
    assert render(rows, "plain").count("IDENTIFICATION") == 20
    assert json.loads(render(rows, "json"))[0]["waits for"] == banner
    assert render(rows, "csv").count("IDENTIFICATION") == 20


def test_clipping_counts_terminal_columns():
    assert clip("abcdef", 4) == "abc…"
    assert clip("日本語テキスト", 6) == "日本…"
    assert clip("क\u0941" * 3, 2) == "क\u0941…"
    assert clip_middle("fft_greek_s12_main", 12) == "fft_gre…main"
    assert clip_middle(LONG, len(LONG)) == LONG
    assert [clip(LONG, width) for width in (0, 1)] == ["", "…"]
    for width in range(1, 30):
        assert width_of(clip_middle("日本語の長い名前です_main", width)) <= width


def test_wrapping_breaks_long_words():
    assert wrap("aa bb cccccc d", 5) == ["aa bb", "ccccc", "c d"]
    assert wrap("日本語", 1) == ["日", "本", "語"]
    assert wrap("", 5) == [""]


def test_wrapping_keeps_spaces_within_a_line():
    assert wrap("echo a  b   c", 40) == ["echo a  b   c"]
    assert wrap("  if a:   b then", 9) == ["  if a:", "b then"]
    assert wrap("    ", 2) == [""]


def test_control_characters_are_replaced():
    assert one_line("a\x1b[2J\nb\u202e") == "a?[2J b?"


@pytest.mark.parametrize("style", ["plain", "github"])
def test_headings_from_jobs_do_not_control_the_terminal(style):
    assert "bad?[31mkey" in render([{"bad\x1b[31mkey": "x"}], style, width=80)
    assert "\x1b" not in render([{"bad\x1b[31mkey": "x" * 99, "job": "y" * 99}], style, width=10)
