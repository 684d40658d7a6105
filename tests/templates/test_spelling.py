"""Which words are near misses of known ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.matrix.entry import KEYS
from dispatcher.templates.spelling import near_misses

LAB = ["lang", "fleurs_code", "whisper_lang", "config_id", "seed", "asr_ratio", "max_text_lines", "text_mtl_path"]
LAB += ["output_dir", "run_kind", "lr", "base", "steps", "model", "data", "batch_size", "enc", "task", "name"]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("time_limt", "time_limit"),
        ("timeLimit", "time_limit"),
        ("time-limit", "time_limit"),
        ("retires", "retries"),
        ("prority", "priority"),
        ("gpu", "gpus"),
        ("need", "needs"),
        ("outlets", "outlet"),
        ("evn", "env"),
        ("comand", "command"),
        ("retry-on", "retry_on"),
        ("imports", "import"),
    ],
)
def test_misspelt_words(key: str, meant: str) -> None:
    assert near_misses(key, KEYS)[:1] == [meant]


@pytest.mark.parametrize("key", LAB)
def test_a_labs_own_words_are_near_nothing(key: str) -> None:
    assert near_misses(key, KEYS) == []


@pytest.mark.parametrize(("key", "word"), [("layer1", "layer2"), ("date", "data"), ("lr", "lt"), ("lang", "lang")])
def test_what_is_different_on_purpose(key: str, word: str) -> None:
    assert near_misses(key, [word]) == []


@given(st.sampled_from([word for word in KEYS if len(word) > 4]), st.integers(0, 20))
def test_two_letters_swapped_or_one_missing(word: str, place: int) -> None:
    place %= len(word) - 1
    swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    for key in (swapped, word[:place] + word[place + 1 :]):
        if key not in KEYS:
            assert word in near_misses(key, KEYS), key
