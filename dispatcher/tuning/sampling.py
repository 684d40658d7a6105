"""Suggests the parameters of trials with Optuna, which is imported here and nowhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from dispatcher.tuning.settings import QMC, space_of
from dispatcher.tuning.space import Distribution
from dispatcher.tuning.trials import OPEN, Status, TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Sampling:
    """A study in memory. `settings` are those of the study as journalled; `trials` all that count, in their order.

    The same arguments give the same suggestions: nothing else is random.
    """

    def __init__(self, settings: Mapping[str, Any], trials: Iterable[TrialState]) -> None:
        self._space = space_of(settings)
        self._distributions = {name: _distribution(one) for name, one in self._space.items()}
        ((self._sampler, self._options),) = settings["sampler"].items()
        direction = "minimize" if settings["objective"]["goal"] == "min" else "maximize"
        self._study = optuna.create_study(direction=direction)
        for one in trials:
            self._add(one)

    def suggest(self, number: int) -> dict[str, Any]:
        """The parameters of trial `number`, which runs from now on as far as later suggestions are concerned."""
        if self._sampler == QMC:
            from dispatcher.tuning.quasi import point

            return point(self._space, self._options["seed"], number)
        seed = int.from_bytes(hashlib.sha256(f"{self._options['seed']}:{number}".encode()).digest()[:4])
        self._study.sampler = _make(self._sampler, self._options, seed)
        asked = self._study.ask(dict(self._distributions))
        params = {name: _value(self._space[name], value) for name, value in asked.params.items()}
        # What counts is what the journal will say: rounded values.
        self._study.tell(asked, state=OptunaState.FAIL)
        self._add_trial(OptunaState.RUNNING, params, None)
        return params

    def _add(self, one: TrialState) -> None:
        if one.status in OPEN:
            self._add_trial(OptunaState.RUNNING, one.params, None)
        elif one.status is Status.DONE:
            self._add_trial(OptunaState.COMPLETE, one.params, one.value)
        elif one.status is Status.PRUNED:
            self._add_trial(OptunaState.PRUNED, one.params, None, one.rungs)
        elif one.status is Status.FAILED:
            self._add_trial(OptunaState.FAIL, one.params, None)

    def _add_trial(
        self,
        state: OptunaState,
        params: Mapping[str, Any],
        value: float | None,
        rungs: Mapping[int, float | None] = MappingProxyType({}),
    ) -> None:
        internal = {
            name: one.index(params[name]) if one.kind == "choice" else params[name]
            for name, one in self._space.items()
        }  # fmt: skip
        reached = {step: found for step, found in rungs.items() if found is not None}
        trial = create_trial(
            state=state, params=internal, distributions=self._distributions, value=value, intermediate_values=reached
        )  # fmt: skip
        self._study.add_trial(trial)


def _distribution(one: Distribution) -> BaseDistribution:
    if one.kind == "choice":
        # By their places: Optuna takes no lists and mappings, and takes 1 and true for the same.
        return CategoricalDistribution(range(len(one.choices)))
    low, high = one.choices
    if one.kind == "integer":
        return IntDistribution(low, high)
    return FloatDistribution(low, high, log=one.kind == "log_uniform")


def _value(one: Distribution, value: Any) -> Any:
    if one.kind == "choice":
        return one.choices[value]
    return int(value) if one.kind == "integer" else one.rounded(value)


def _make(name: str, options: Mapping[str, int], seed: int) -> optuna.samplers.BaseSampler:
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=options["startup"])
