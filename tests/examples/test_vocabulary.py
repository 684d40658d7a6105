from __future__ import annotations

import pytest
from jobs import _text as text
from jobs._vocabulary import BOUNDARY, Vocabulary


@pytest.mark.parametrize("language", text.LOCALES)
def test_every_name_comes_back(language):
    names = text.names(language)
    vocabulary = Vocabulary.of(names)
    assert [vocabulary.decode(vocabulary.encode(name)) for name in names] == list(names)


def test_numbers_are_dense_and_leave_zero_to_the_mark():
    vocabulary = Vocabulary.of(["ba", "cab"])
    assert vocabulary.alphabet == "abc"
    assert vocabulary.size == 4
    assert vocabulary.encode("cab").tolist() == [3, 1, 2]
    assert vocabulary.decode([BOUNDARY, 3, 1, 2, BOUNDARY]) == "cab"


def test_an_unknown_character_is_named():
    with pytest.raises(ValueError, match="'abx' holds the character 'x'"):
        Vocabulary.of(["ab"]).encode("abx")
