"""docs/trainer.md has every hook, setting and protocol of the trainer, and no other."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pages import first_column

import dispatcher.runtime
from dispatcher.runtime import State, Streamed, Trainer
from dispatcher.runtime.jobs.inference_config import InferenceConfig
from dispatcher.runtime.optimizers import OptimizerConfig
from dispatcher.runtime.places import layout
from dispatcher.runtime.rollout import Decoder
from dispatcher.runtime.schedules import ScheduleConfig
from dispatcher.runtime.training import surroundings
from dispatcher.runtime.training.config import TrainingConfig
from dispatcher.runtime.training.hooks import TrainerHooks
from dispatcher.runtime.training.precision import Precision
from dispatcher.runtime.training.state import EMA, MODEL, OPTIMIZER
from dispatcher.runtime.training.step import Updater

pytestmark = pytest.mark.demo

PAGE = (Path(__file__).parents[3] / "docs" / "trainer.md").read_text(encoding="utf-8")
# What the loop, the search for a batch size and InferenceJob use of a trainer: nothing that a job replaces or calls.
INTERNAL = {
    "axis_rules", "block_error", "calibrate", "config_classes", "configuration_in_force", "done", "hold_model",
    "prepare", "prepare_on", "probe_batch_size", "reads_each_step", "run_block", "save_state", "uses_best",
}  # fmt: skip


def call(member: Any) -> str:
    """A method as the page writes it: `loss(model, batch, rngs)`."""
    return f"{member.__name__}({', '.join(name for name in inspect.signature(member).parameters if name != 'self')})"


def public(cls: type) -> set[str]:
    return {name for name in (*vars(cls), *vars(cls).get("__annotations__", {})) if not name.startswith("_")}


def test_every_hook_is_on_the_page_as_it_is_called() -> None:
    named = {
        name for after in ("## Hooks\n", "Class attributes:\n", "in a hook:\n") for name in first_column(PAGE, after)
    }
    members = public(Trainer) | public(TrainerHooks)
    methods = {name for name in members if inspect.isroutine(getattr(Trainer, name, None))}
    wanted = {call(getattr(Trainer, name)) if name in methods else name for name in members - INTERNAL}
    assert wanted - named == set()
    gone = {name for name in named if "(" in name and not hasattr(Trainer, name.partition("(")[0])}
    assert gone == set()
    assert members >= INTERNAL


def test_every_setting_is_on_the_page_and_no_other() -> None:
    paths = layout(TrainingConfig, OptimizerConfig, ScheduleConfig)
    assert first_column(PAGE, "## Settings\n") == {re.sub(r"(precision)\..*", r"\1", path) for path in paths}
    assert first_column(PAGE, "TRAINER = Digits\n```\n") == layout(InferenceConfig).keys()
    precision = PAGE.partition("## Precision\n")[2].partition("## ")[0]
    assert [name for name in layout(Precision) if not re.search(rf"[`.]{name}`", precision)] == []


@pytest.mark.parametrize("cls", [State, Streamed])
def test_the_fields_of_what_users_handle_are_on_the_page(cls: type) -> None:
    assert [name for name in cls.__annotations__ if not re.search(rf"\b{name}\b", PAGE)] == []


def test_the_protocols_are_on_the_page() -> None:
    names = [name for name, module in dispatcher.runtime._PUBLIC.items() if ".training." in module]
    assert [name for name in names if not re.search(rf"\b{name}\b", PAGE)] == []
    assert len(names) > 5
    parts = {name.partition("(")[0] for name in first_column(PAGE, "the parts of the default step:\n")}
    assert parts == {name for name in public(Updater) if inspect.isfunction(vars(Updater).get(name))}
    cache = {name.partition("(")[0] for name in first_column(PAGE, "a cache is any pytree:\n")}
    assert cache == {name for name in public(Decoder) if inspect.isfunction(vars(Decoder)[name])}


def test_what_a_checkpoint_has_is_on_the_page() -> None:
    for name in (MODEL, OPTIMIZER, EMA, *surroundings.found()):
        assert f"`{name}`" in PAGE, name
