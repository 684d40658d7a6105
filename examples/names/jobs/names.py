"""The demo's jobs: pretraining on all languages, then fine-tuning on one, of all weights or of adapters beside them."""

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

from dispatcher.runtime.adapters import adapted, add_adapters
from dispatcher.runtime.configuration import Config, field
from dispatcher.runtime.jobs.basic import Row
from dispatcher.runtime.jobs.trainer import HELD_OUT_LOSS, BaseTrainer
from dispatcher.runtime.parameters import Arrays, count
from dispatcher.runtime.registry import job
from dispatcher.runtime.step import LOSS, TrainState
from dispatcher.runtime.transformer import Transformer

ALL: Final = "all"
# Bits per character on held-out names: now, and before the fine-tuning.
TEST_BPC: Final = "test_bpc"
BASE_BPC: Final = "base_bpc"


@dataclass(frozen=True)
class NamesConfig:
    """`lang` is one of `text.LOCALES`, or `all`. The `alphabet` is what the model can read."""

    lang: str = field("names/lang", default=ALL)
    alphabet: str = field("names/alphabet")


@dataclass(frozen=True)
class AdapterConfig(NamesConfig):
    """`rank` is the number of columns of each adapter."""

    rank: int = field("adapters/rank", default=8)


@job("names/pretrain")
class Pretrain(BaseTrainer[NamesConfig, Transformer]):
    """Pretrain a transformer on the names of all languages."""

    MODEL = Transformer
    CONFIG: type[NamesConfig] = NamesConfig

    @classmethod
    def checked_config(
        cls, *layers: Config | Mapping[str, Any], where: str = "configuration", complete: bool = True
    ) -> Config:
        """As every job's, with the alphabet of all languages where none is said."""
        everything = _everything()
        ours = {"names": {"alphabet": everything.alphabet}, "model": {"vocabulary": everything.size}}
        return super().checked_config(ours, *layers, where=where, complete=complete)

    def source(self) -> PackedNames:
        return PackedNames(self._encoded(self._names().train), seed=self.training.seed)

    def held_out(self) -> PackedNames:
        return PackedNames(self._encoded(self._names().held_out), seed=None)

    def evaluate(self) -> dict[str, float]:
        """Also in bits per character.

        For a name c1 ... cn it counts n + 1 predictions: every character and the mark that ends the name, each given
        the characters before it in that name and nothing else. Lower is better; a uniform guess costs log2 of the
        vocabulary's size.
        """
        found = super().evaluate()
        return {**found, TEST_BPC: found[HELD_OUT_LOSS] / math.log(2)}

    def result(self) -> Row:
        return {
            TEST_BPC: round(self.measured[TEST_BPC], 4),
            "train_bpc": round(self.measured[LOSS] / math.log(2), 4),
            "n_trained": count(self.live_state.trained),
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
        """Begin with the weights of the pretrained model at `rel_path`, and with nothing else of its training."""
        self._base = rel_path

    def start_from(self) -> Arrays:
        return self.load_model(self._base)

    def fresh_state(self) -> TrainState:
        self.state = super().fresh_state()
        # Kept in every checkpoint, so that it is there at the end, whatever happens on the way.
        self.measured[BASE_BPC] = self.evaluate()[TEST_BPC]
        return self.state

    def result(self) -> Row:
        base = self.measured[BASE_BPC]
        return {**super().result(), BASE_BPC: round(base, 4), "gain": round(base - self.measured[TEST_BPC], 4)}


@job("names/lora")
class Lora(FineTune):
    """Train low-rank adapters beside the weights of a pretrained model, which stay, on the names of one language."""

    CONFIG = AdapterConfig
    TRAINABLE = nnx.LoRAParam
    args: AdapterConfig

    def make_model(self) -> Transformer:
        model = super().make_model()
        add_adapters(model, self.args.rank, seed=self.training.seed)
        return model

    def start_from(self) -> Arrays:
        return adapted(self.load_model(self._base, super().make_model), self.programs.skeleton.variables)


@cache
def _everything() -> Vocabulary:
    """The alphabet is given, as the bytes are to a byte-level model; no held-out name is seen in training."""
    names = text.split(*text.LOCALES)
    return Vocabulary.of(names.train + names.held_out)
