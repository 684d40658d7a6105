"""The demo's text: what CLDR calls languages, territories, scripts and currencies, in each language itself.

The text comes with Babel, so that a demo on real text in many scripts needs no download. A hash of the name decides
whether it is in the training set or in the test set: the split is the same in every process and for every language, and
a name that several languages share (`Guam`) is never in both.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass
from typing import Final

from babel import Locale

from dispatcher.errors import UsageError, nearest

# Language -> CLDR locale: five scripts, and three languages that share Latin with many diacritics of their own.
LOCALES: Final = {
    "czech": "cs",
    "greek": "el",
    "hindi": "hi",
    "russian": "ru",
    "turkish": "tr",
    "vietnamese": "vi",
}

TEST_FRACTION: Final = 0.2


@dataclass(frozen=True)
class Split:
    """The names of one language or of several; `test` is never trained on."""

    train: tuple[str, ...]
    test: tuple[str, ...]


def names(language: str) -> tuple[str, ...]:
    """All distinct names of `language`, NFC-normalised and sorted; UsageError for a language without a locale."""
    if language not in LOCALES:
        raise UsageError(f"no text in language {language!r}{nearest(str(language), LOCALES)}")
    locale = Locale.parse(LOCALES[language])
    tables = (locale.languages, locale.territories, locale.scripts, locale.currencies)
    return tuple(sorted({unicodedata.normalize("NFC", name) for table in tables for name in table.values()}))


def is_test(name: str) -> bool:
    """Whether `name` is in the test set; spellings that differ only in case stay together."""
    digest = hashlib.sha256(unicodedata.normalize("NFC", name.casefold()).encode()).digest()
    return int.from_bytes(digest[:8], "big") < TEST_FRACTION * 2**64


def split(*languages: str) -> Split:
    """The names of `languages`, split; a name that several of them share counts once."""
    everything = sorted({name for language in languages for name in names(language)})
    return Split(
        train=tuple(name for name in everything if not is_test(name)),
        test=tuple(name for name in everything if is_test(name)),
    )
