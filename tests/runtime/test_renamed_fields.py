"""A checkpoint of a model whose configuration had other fields: nothing falls back to a default without a word."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flax import nnx
from tiny_training import Tiny

from dispatcher.errors import ConfigError
from dispatcher.runtime import registry
from dispatcher.runtime.configuration import checked, configuration, field, to_dict
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs.inference import InferenceJob
from dispatcher.runtime.launching import make_job

pytestmark = pytest.mark.demo


@dataclass(frozen=True)
class Before:
    vocab_size: int = field("model/vocab_size")
    gain: float = field("model/gain", default=3.0)


@dataclass(frozen=True)
class Renamed:
    vocab_size: int = field("model/vocab_size")
    scale: float = field("model/scale", default=1.0)


@dataclass(frozen=True)
class Declared:
    vocab_size: int = field("model/vocab_size")
    scale: float = field("model/scale", default=1.0, renamed_from="model/gain")


@dataclass(frozen=True)
class Extended:
    vocab_size: int = field("model/vocab_size")
    gain: float = field("model/gain", default=3.0)
    bias: bool = field("model/bias", default=False)


@dataclass(frozen=True)
class Removed:
    vocab_size: int = field("model/vocab_size")


@dataclass(frozen=True)
class Moved:
    vocab_size: int = field("arch/vocabulary", renamed_from="model/vocab_size")
    gain: float = field("arch/gain", default=1.0)


class Table(nnx.Module):
    """Looks at one token only; the configuration says how large its logits are."""

    CONFIG: type[Any] = Before

    def __init__(self, config: Any, *, rngs: nnx.Rngs) -> None:
        self.factor = getattr(config, "gain", getattr(config, "scale", 1.0))
        self.table = nnx.Embed(config.vocab_size, config.vocab_size, rngs=rngs)

    def __call__(self, tokens: Any, *, segment_ids: Any = None, rngs: Any = None) -> Any:
        return self.table(tokens) * self.factor


def job_on(config: type[Any]) -> Any:
    """The trainer's class as the code has it when the model has this configuration."""
    model = type("Table", (Table,), {"CONFIG": config})
    cls: Any = type("Trains", (Tiny,), {"MODEL": model, "__module__": __name__, "__qualname__": "Trains"})
    registry._registered["tests/table"] = cls
    return cls


def inference_on(config: type[Any]) -> Any:
    names = {"MODEL": type("Table", (Table,), {"CONFIG": config}), "config": classmethod(lambda cls: Tiny.CONFIG)}
    return type("Use", (InferenceJob,), {**names, "run": lambda self: None})


WORDS = {"training": {"steps": 4, "batch_size": 8, "log_every": 1}, "optimization": {"lr": 0.1}}


def trainer(root: Path, config: type[Any], name: str = "table") -> Any:
    cls = job_on(config)
    with configuration(cls.checked_config({**WORDS, "model": {"vocab_size": 16}})):
        return cls.local(root, name)


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Any]:
    job = trainer(tmp_path, Before)
    job()
    yield job
    del registry._registered["tests/table"]


def restored(saved: Any, cls: Any) -> Any:
    return make_job(cls, local(saved.spec.hardware.cluster.root, "other"), {}, restore=saved.path_of("best"))


def test_a_renamed_field_is_an_error_that_says_how_to_declare_it(saved: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        restored(saved, job_on(Renamed))
    assert str(caught.value).partition("best/config.yaml: 1 problem\n")[2] == (
        "  model.gain = 3.0: no field reads it any more (did you mean 'model.scale'?): if it was renamed, declare "
        "it with field('model/scale', renamed_from='model/gain'); if it was removed, use the code that saved it"
    )


@pytest.mark.parametrize("config", [Renamed, Removed])
def test_a_field_that_is_gone_is_an_error_for_everybody(saved: Any, config: type[Any]) -> None:
    with pytest.raises(ConfigError, match=r"best/config.yaml: 1 problem\n  model.gain = 3.0: no field reads it"):
        restored(saved, job_on(config))
    with pytest.raises(ConfigError, match=r"model.gain = 3.0: no field reads it any more"):
        restored(saved, inference_on(config))
    # Also where the configuration does not come from the checkpoint.
    cls = inference_on(config)
    with configuration(cls.checked_config({"model": {"vocab_size": 16}})):
        use = cls.local(saved.spec.hardware.cluster.root, "use")
    with pytest.raises(ConfigError, match=r"model.gain = 3.0: no field reads it any more"):
        use.restore_from_path(saved.path_of("best"))
    # And for the next attempt of the training itself.
    again = trainer(saved.spec.hardware.cluster.root, config)
    saved.spec.result_path("result.json").unlink()
    with pytest.raises(ConfigError, match=r"model.gain = 3.0: no field reads it any more"):
        again()


def test_a_field_that_has_moved_to_another_group_is_an_error(saved: Any) -> None:
    with pytest.raises(ConfigError, match=r"1 problem\n  model.gain = 3.0: .*did you mean 'arch.gain'"):
        restored(saved, inference_on(Moved))


def test_what_is_said_over_a_checkpoint_may_use_the_old_name(saved: Any) -> None:
    for cls in (job_on(Declared), inference_on(Declared)):
        spec = local(saved.spec.hardware.cluster.root, "other")
        job = make_job(cls, spec, {"model": {"gain": 5.0}}, restore=saved.path_of("best"))
        assert job.make_model(nnx.Rngs(0)).factor == 5.0


def test_a_field_says_where_it_stood_before(saved: Any) -> None:
    for cls in (job_on(Declared), inference_on(Declared)):
        job = restored(saved, cls)
        assert to_dict(job._config)["model"] == {"vocab_size": 16, "scale": 3.0}
        assert job.make_model(nnx.Rngs(0)).factor == 3.0
    # A file of that time is read, too.
    assert to_dict(checked([Declared], {"model": {"vocab_size": 1, "gain": 2.0}})) == {
        "model": {"vocab_size": 1, "scale": 2.0}
    }
    with pytest.raises(ConfigError, match=r"model.gain = 2.0: was renamed to model.scale, which is set as well"):
        checked([Declared], {"model": {"vocab_size": 1, "gain": 2.0, "scale": 1.0}})


def test_a_new_field_takes_its_default_and_that_is_said(saved: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dispatcher"):
        restored(saved, inference_on(Extended))
    assert "has no value of the newer field model.bias: using false" in caplog.text


def test_another_value_on_the_way_is_reported(saved: Any, caplog: pytest.LogCaptureFixture) -> None:
    cls = inference_on(Before)
    with configuration(cls.checked_config({"model": {"vocab_size": 16, "gain": 2.0}})):
        use = cls.local(saved.spec.hardware.cluster.root, "use")
    use.restore_from_path(saved.path_of("best"))
    assert "model.gain = 2.0, but " in caplog.text
    assert "was saved with 3.0" in caplog.text


def test_places_that_contradict_each_other() -> None:
    @dataclass(frozen=True)
    class Twice:
        one: int = field("a/one", default=1)
        two: int = field("a/two", default=1, renamed_from="a/one")

    with pytest.raises(TypeError, match=r"'a.two' is renamed from 'a.one', which is the place of another field"):
        checked([Twice])
