"""ModelJob: a job with a Flax model, which a class or a method makes."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from flax import nnx

from dispatcher.runtime.configuration import configure
from dispatcher.runtime.jobs.restoreable import RestoreableJob

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)


class ModelJob(RestoreableJob[C], Generic[C, M]):
    """A job with a model: MODEL, or what `make_model` returns.

    MODEL is a Flax module that is made as `MODEL(config, rngs=...)`, where `config` is of the dataclass `MODEL.CONFIG`,
    or as `MODEL(rngs=...)` if it has none. `model_config` is the instance of that dataclass; a job without MODEL may
    name its dataclasses in `model_classes`, and then it is one of the first of these.
    """

    MODEL: type[Any]

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.model_config: Any = next((configure(kind) for kind in self.model_classes()), None)

    @classmethod
    def config_classes(cls) -> tuple[type[Any], ...]:
        return tuple(dict.fromkeys((*super().config_classes(), *cls.model_classes())))

    @classmethod
    def model_classes(cls) -> tuple[type[Any], ...]:
        config = getattr(getattr(cls, "MODEL", None), "CONFIG", None)
        return () if config is None else (config,)

    def make_model(self, rngs: nnx.Rngs) -> M:
        """A new model; traced."""
        if not hasattr(self, "MODEL"):
            raise NotImplementedError(
                f"{type(self).__qualname__} has neither MODEL nor make_model(self, rngs), which returns a Flax module"
            )
        model: M = self.MODEL(rngs=rngs) if self.model_config is None else self.MODEL(self.model_config, rngs=rngs)
        return model
