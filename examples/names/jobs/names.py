"""The demo's jobs: pretraining on all languages, then fine-tuning on one, of all weights or of low-rank adapters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from flax import nnx
from jobs import _text as text
from jobs._packing import PackedNames
from jobs._vocabulary import Vocabulary

from dispatcher.runtime.adapters import add_adapters
from dispatcher.runtime.configuration import Config, field
from dispatcher.runtime.jobs.basic import Row
from dispatcher.runtime.language.trainer import LanguageTrainer
from dispatcher.runtime.language.transformer import Transformer
from dispatcher.runtime.parameters import Arrays, parameter_count
from dispatcher.runtime.registry import job
from dispatcher.runtime.training.state import State

ALL: Final = "all"
# Bits per character on the test names: now, and before the fine-tuning.
TEST_BPC: Final = "test_bpc"
BASE_BPC: Final = "base_bpc"
TEST_LOSS: Final = "test/loss"


@dataclass(frozen=True)
class NamesConfig:
    """`lang` is a language of `_text.LOCALES`, or `all`. `alphabet` holds the characters of the vocabulary."""

    lang: str = field("names/lang", default=ALL)
    alphabet: str = field("names/alphabet")


@dataclass(frozen=True)
class AdapterConfig(NamesConfig):
    """`rank` is the number of columns of each adapter."""

    rank: int = field("adapters/rank", default=8)


@job("names/pretrain")
class Pretrain(LanguageTrainer[NamesConfig, Transformer]):
    """Pretrain a transformer on the names of all languages."""

    MODEL = Transformer
    CONFIG: type[NamesConfig] = NamesConfig
    BEST = (TEST_LOSS, "min")

    @classmethod
    def checked_config(
        cls, *layers: Config | Mapping[str, Any], where: str = "configuration", complete: bool = True
    ) -> Config:
        """As for every job; the default alphabet is that of all languages."""
        vocabulary = _full_vocabulary()
        defaults = {"names": {"alphabet": vocabulary.alphabet}, "model": {"vocab_size": vocabulary.size}}
        return super().checked_config(defaults, *layers, where=where, complete=complete)

    def data(self) -> PackedNames:
        return PackedNames(self._encoded(self._names().train))

    def evaluations(self) -> dict[str, PackedNames]:
        return {"test": PackedNames(self._encoded(self._names().test))}

    def result(self) -> Row:
        """Losses in bits per character.

        A name c1 ... cn has n + 1 predictions: each character and the mark that ends the name, given the characters
        before it in that name. Lower is better; a uniform guess costs log2 of the vocabulary's size.
        """
        return {
            TEST_BPC: round(self.measured[TEST_LOSS] / math.log(2), 4),
            "train_bpc": round(self.measured["loss"] / math.log(2), 4),
            "n_trained": parameter_count(self.live_state.params),
        }

    def _names(self) -> text.Split:
        return text.split(*(text.LOCALES if self.args.lang == ALL else [self.args.lang]))

    def _encoded(self, names: Sequence[str]) -> list[Any]:
        vocabulary = Vocabulary(self.args.alphabet)
        return [vocabulary.encode(name) for name in names]


@job("names/fine-tune")
class FineTune(Pretrain):
    """Train every weight of a pretrained model on the names of one language."""

    _base: str

    @classmethod
    def checkpoint_classes(cls) -> tuple[type[Any], ...]:
        return (cls.MODEL.CONFIG,)

    def restore_from_path(self, rel_path: str) -> None:
        """Start from the weights of the pretrained model at `rel_path`, with a new optimizer state."""
        self._base = rel_path

    def start_from(self) -> Arrays:
        return self.load_model(self._base)

    def fresh_state(self) -> State:
        self.state = super().fresh_state()
        # Every checkpoint has it, so that a later attempt can report the gain.
        self.measured[BASE_BPC] = self.evaluated()[TEST_LOSS] / math.log(2)
        return self.state

    def result(self) -> Row:
        base, now = self.measured[BASE_BPC], self.measured[TEST_LOSS] / math.log(2)
        return {**super().result(), BASE_BPC: round(base, 4), "gain": round(base - now, 4)}


@job("names/lora")
class Lora(FineTune):
    """Train low-rank adapters of a pretrained model, whose weights are frozen, on the names of one language."""

    CONFIG = AdapterConfig
    TRAINABLE = nnx.LoRAParam
    args: AdapterConfig

    def make_model(self, rngs: nnx.Rngs) -> Transformer:
        model = super().make_model(rngs)
        add_adapters(model, self.args.rank, rngs=rngs)
        return model

    def start_from(self) -> Arrays:
        return self.load_model(self._base, super().make_model)


@cache
def _full_vocabulary() -> Vocabulary:
    """All characters, those of the test names too: as with bytes, the alphabet is given and not learned."""
    names = text.split(*text.LOCALES)
    return Vocabulary.of(names.train + names.test)
