from __future__ import annotations

import unicodedata

import pytest
from jobs import _text as text
from jobs._packing import SEQ_LEN

from dispatcher.errors import UsageError

LANGUAGES = tuple(text.LOCALES)


def scripts_of(names):
    """The first words of the letters' Unicode names: LATIN, GREEK ..."""
    return {unicodedata.name(letter).split()[0] for name in names for letter in name if letter.isalpha()}


def test_there_are_six_languages_in_at_least_four_scripts():
    assert len(LANGUAGES) >= 6
    scripts = set().union(*(scripts_of(text.names(language)) for language in LANGUAGES))
    assert {"LATIN", "GREEK", "DEVANAGARI", "CYRILLIC"} <= scripts


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_has_text_enough_to_learn_from(language):
    names = text.names(language)
    assert len(names) == len(set(names)) > 900
    assert all(unicodedata.is_normalized("NFC", name) for name in names)
    assert max(map(len, names)) < SEQ_LEN


def test_an_unknown_language_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match="did you mean 'greek'"):
        text.names("greeek")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_split_loses_and_doubles_nothing(language):
    split = text.split(language)
    assert sorted(split.train + split.test) == sorted(text.names(language))
    assert 0.15 < len(split.test) / len(text.names(language)) < 0.25


def test_no_test_name_of_any_language_is_trained_on_in_any_other():
    trained = {name.casefold() for language in LANGUAGES for name in text.split(language).train}
    tested = {name.casefold() for language in LANGUAGES for name in text.split(language).test}
    assert trained.isdisjoint(tested)


def test_all_languages_together_are_split_as_each_alone():
    together = text.split(*LANGUAGES)
    assert set(together.train) == {name for language in LANGUAGES for name in text.split(language).train}
    assert set(together.test) == {name for language in LANGUAGES for name in text.split(language).test}
    assert len(together.train) == len(set(together.train))


def test_spellings_that_differ_only_in_case_or_composition_stay_together():
    for name in text.names("czech")[:200]:
        assert text.is_test(name) == text.is_test(name.upper().lower())
        assert text.is_test(name) == text.is_test(unicodedata.normalize("NFD", name))


def test_the_split_is_the_same_in_every_version():
    # Weights pretrained yesterday must not have seen what is in the test set today.
    assert [name for name in ("Guam", "Malta", "Brunei", "Kenya", "Nepal") if text.is_test(name)] == ["Brunei"]
