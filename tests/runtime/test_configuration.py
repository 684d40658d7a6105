"""Configurations: defaults, overrides, merging, checking, and dataclasses made of them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.base import yaml_text
from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import (
    REQUIRED,
    Config,
    assigned,
    check,
    checked,
    configuration,
    configure,
    current_config,
    defaults,
    field,
    merge,
    parse_overrides,
    to_dict,
)


class Precision(Enum):
    HALF = "bf16"
    FULL = "f32"


@dataclass(frozen=True)
class Optimizer:
    lr: float = field("lr", default=1e-3)
    betas: tuple[float, float] = field("betas", default=(0.9, 0.95))


@dataclass(frozen=True)
class Training:
    steps: int = field("training/steps")
    optimizer: Optimizer = field("training/optimizer", default_factory=Optimizer)
    schedule: Literal["cosine", "wsd"] = field("training/schedule", default="cosine")
    clip: float | None = field("training/clip", default=None)
    precision: Precision = field("training/precision", default=Precision.FULL)
    out: Path = field("training/out", default=Path("runs"))
    langs: list[str] = field("data/langs", default_factory=list)
    weights: dict[str, float] = field("data/weights", default_factory=dict)
    note: str = "not configurable"


@dataclass(frozen=True)
class Model:
    layers: int = field("model/layers", default=4)
    block_size: int = field("model/block_size", default=512)


DEFAULTS = """\
training:
  steps: '...'
  optimizer:
    lr: 0.001
    betas:
    - 0.9
    - 0.95
  schedule: cosine
  clip: null
  precision: f32
  out: runs
data:
  langs: []
  weights: {}
model:
  layers: 4
  block_size: 512
"""


def faults(*layers: dict[str, Any], **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        checked([Training, Model], *layers, **options)
    return [line.strip() for line in str(caught.value).splitlines()]


def test_defaults_of_several_dataclasses() -> None:
    assert yaml_text.dump(defaults(Training, Model)) == DEFAULTS


def test_a_dataclass_is_made_with_its_own_types() -> None:
    config = checked(
        [Training, Model],
        yaml_text.load("training: {steps: 10, optimizer: {lr: 1, betas: [0, 1]}, precision: bf16, clip: 1e-2}"),
        parse_overrides(["data.langs=[el, tr]", "data.weights.el=2", "training.out=a b"]),
    )
    made = configure(Training, config)
    assert made == Training(
        steps=10,
        optimizer=Optimizer(lr=1.0, betas=(0.0, 1.0)),
        clip=0.01,
        precision=Precision.HALF,
        out=Path("a b"),
        langs=["el", "tr"],
        weights={"el": 2.0},
    )
    assert type(made.optimizer.lr) is float
    assert configure(Model, config) == Model(layers=4, block_size=512)


def test_all_faults_are_named_at_once() -> None:
    said = yaml_text.load(
        """
training:
  optimizer: {lr: fast, betas: [0.9, yes], momentum: 1}
  schedule: cosin
  clip: true
data: 7
model: {layers: 2.0, blok_size: 3}
trainig: {steps: 3}
"""
    )
    assert faults(said, where="run.yaml") == [
        "run.yaml: 10 problems",
        "data = 7: expected a group of keys such as data.langs",
        'training.optimizer.lr = "fast": expected a number',
        'training.optimizer.betas[1] = "yes": expected a number',
        "training.optimizer.momentum = 1: unknown key (known: training.optimizer.lr, training.optimizer.betas)",
        "training.schedule = \"cosin\": expected cosine or wsd (did you mean 'cosine'?)",
        "training.clip = true: expected a number or null",
        "model.layers = 2.0: expected a whole number, written 2",
        "model.blok_size = 3: unknown key (did you mean 'model.block_size'?)",
        "trainig.steps = 3: unknown key (did you mean 'training.steps'?)",
        "training.steps: required, but not set: expected a whole number",
    ]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("training.steps=1e3", "training.steps = 1000.0: expected a whole number, written 1000"),
        ("training.steps=true", "training.steps = true: expected a whole number"),
        ("data.langs=el", 'data.langs = "el": expected a list, each of it text'),
        ("data.langs=[el, 3]", "data.langs[1] = 3: expected text (in quotes"),
        ("data.weights.el=x", 'data.weights.el = "x": expected a number'),
        ("training.precision=fp8", 'training.precision = "fp8": expected bf16 or f32'),
        ("training.optimizer.betas=[1]", "training.optimizer.betas = [1]: expected a list of 2"),
        ("training.out=3", "training.out = 3: expected a path"),
    ],
)
def test_a_wrong_value_is_named_with_its_path(override: str, problem: str) -> None:
    lines = faults({"training": {"steps": 1}}, parse_overrides([override]))
    assert len(lines) == 2 and lines[1].startswith(problem)


def test_overrides_that_cannot_be_used_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overrides(["training.lr", "a.b=1", "a.b=2", "a.b.c=3", "a=4", ".x=1", "y=[1"])
    message = str(caught.value)
    assert message.startswith("overrides: 6 problems")
    for word in ("'training.lr'", "'a.b=2'", "'a.b.c=3'", "'a=4'", "'.x=1'", "y = '[1'"):
        assert word in message


def test_values_that_a_job_does_not_know_may_be_those_of_its_checkpoint() -> None:
    document = {"training": {"steps": 1}, "model": {"layers": 2}}
    with pytest.raises(ConfigError, match=r"model\.layers = 2: unknown key"):
        check(document, Training)
    check(document, Training, known={"model": {"layers": 4}})
    check({}, Training, complete=False)


def test_the_configuration_in_force() -> None:
    assert current_config() is None
    with pytest.raises(ConfigError, match="no configuration in force for Model"):
        configure(Model)
    with configuration({"model": {"layers": 2}}) as outer:
        with configuration({"model": {"layers": 3}}):
            assert configure(Model).layers == 3
        assert configure(Model) == Model(layers=2)
        outer.model.layers = 7
        assert configure(Model).layers == 7
        assert to_dict(current_config() or {}) == {"model": {"layers": 7}}
    assert current_config() is None


def test_assignments_are_checked_where_they_are_written() -> None:
    config = checked([Training, Model], complete=False)
    config.training.optimizer.lr = 1e-4
    config["model"]["layers"] = 8
    config.training.out = Path("elsewhere")
    assert config.training.optimizer.lr == 1e-4 and config.model.layers == 8
    assert assigned(config) == {"training": {"optimizer": {"lr": 1e-4}, "out": "elsewhere"}, "model": {"layers": 8}}
    with pytest.raises(ConfigError, match=r'model\.layers = "8": expected a whole number'):
        config.model.layers = "8"
    with pytest.raises(ConfigError, match=r"model\.layrs = 8: unknown key \(did you mean 'model\.layers'\?\)"):
        config.model.layrs = 8
    with pytest.raises(ConfigError, match=r"model is a group: set its values one by one, such as model\.layers"):
        config.model = {"layers": 8}
    with pytest.raises(AttributeError, match=r"did you mean 'model\.layers'"):
        _ = config.model.layer
    with pytest.raises(AttributeError, match=r"training\.steps: required, but not set"):
        _ = config.training.steps
    assert config.model.layers == 8


def test_a_copy_of_a_configuration_is_another_one() -> None:
    config = checked([Model])
    twin = copy.deepcopy(config)
    twin.model.layers = 9
    assert config.model.layers == 4 and twin.model.layers == 9
    assert config == to_dict(config) and config != twin


@dataclass
class OtherModel:
    block_size: int = field("model/block_size", default=1024)


@dataclass
class FloatModel:
    block_size: float = field("model/block_size", default=1.0)


@dataclass
class Unplaced:
    layers: int


@dataclass
class Below:
    deep: int = field("model/layers/deep", default=1)


@dataclass
class Reserved:
    name: str = field("job", default="")


@dataclass
class Strange:
    thing: set[int] = field("thing", default_factory=set)


def test_a_shared_place_suits_both_and_has_a_default_only_if_they_agree() -> None:
    assert defaults(Model, Model)["model"]["block_size"] == 512
    assert defaults(Model, OtherModel)["model"]["block_size"] == REQUIRED
    config = checked([Model, FloatModel], {"model": {"block_size": 3}})
    assert type(configure(FloatModel, config).block_size) is float
    with pytest.raises(ConfigError, match=r"model\.block_size = 1\.5: expected a whole number"):
        checked([Model, FloatModel], {"model": {"block_size": 1.5}})


@pytest.mark.parametrize(
    ("classes", "problem"),
    [
        ([Unplaced], r"Unplaced\.layers has neither a place nor a default: write field\('layers'\)"),
        ([Model, Below], r"'model\.layers' is the place of a value, so 'model\.layers\.deep' cannot be below it"),
        ([Reserved], "'job' is a reserved key of job files"),
        ([Strange], r"Strange\.thing: set\[int\] is not a type for a configuration's value"),
        ([Model()], "is not a dataclass"),
    ],
)
def test_dataclasses_that_cannot_be_used(classes: list[Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        defaults(*classes)


def test_a_place_is_made_of_names() -> None:
    with pytest.raises(TypeError, match="'training lr': expected letters"):
        field("training lr/x", default=1)


names = st.sampled_from(["a", "b", "c"])
leaves = st.integers() | st.text("xyz", max_size=3) | st.lists(st.integers(), max_size=2) | st.none()
trees = st.recursive(
    st.dictionaries(names, leaves, max_size=3), lambda t: st.dictionaries(names, t | leaves, max_size=3)
)


@given(trees, trees)
def test_merging_keeps_what_is_said_and_changes_neither(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = copy.deepcopy((base, over))
    merged = merge(base, over)
    assert (base, over) == before
    assert merge(merged, over) == merged
    assert merge(base, {}) == base and merge({}, over) == over

    def holds(said: dict[str, Any], whole: dict[str, Any]) -> None:
        for key, value in said.items():
            if isinstance(value, dict) and isinstance(whole[key], dict):
                holds(value, whole[key])
            else:
                assert whole[key] == value

    holds(over, merged)
    assert merged.keys() == base.keys() | over.keys()


def test_merging_does_not_say_again_what_nobody_said() -> None:
    assert merge({"a": 1, "b": {"c": 2}}, {"a": REQUIRED, "b": {"c": REQUIRED, "d": REQUIRED}}) == {
        "a": 1,
        "b": {"c": 2, "d": REQUIRED},
    }


# The one text that no value can be: it stands for a value that nobody has said.
words = st.text("ab1.:# -", max_size=6).filter(lambda word: word != REQUIRED)
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words


@given(st.dictionaries(st.sampled_from(["lr", "optimizer.lr", "data.langs", "data.n"]), values, max_size=4))
def test_overrides_say_what_yaml_says(said: dict[str, Any]) -> None:
    words = [f"{path}={yaml_text.dump([value]).removeprefix('- ').rstrip()}" for path, value in said.items()]
    tree = Config(parse_overrides(words))
    for path, value in said.items():
        found: Any = tree
        for key in path.split("."):
            found = found[key]
        assert type(found) is type(value) and found == value
