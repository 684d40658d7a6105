"""Suggests the parameters of trials with Optuna, which is imported here and nowhere else."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from dispatcher.base.values import identity
from dispatcher.matrix.draw import at_step, steps_within
from dispatcher.tuning.settings import QMC, space_of
from dispatcher.tuning.space import Distribution, combinations
from dispatcher.tuning.trials import OPEN, Status, TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)

# So often a trial is suggested that was tried already.
_DRAWS: Final = 20
_QMC_AGAIN: Final = 1 << 20


class Sampling:
    """A study in memory. `settings` are those of the study as journalled; `trials` all that count, in their order.

    The same arguments give the same suggestions: nothing else is random.
    """

    def __init__(self, settings: Mapping[str, Any], trials: Iterable[TrialState]) -> None:
        self._space = space_of(settings)
        ((self._sampler, self._options),) = settings["sampler"].items()
        direction = "minimize" if settings["objective"]["goal"] == "min" else "maximize"
        self._study = optuna.create_study(direction=direction)
        # What Optuna takes for the worst value: NaN it does not take.
        self._worst = math.inf if direction == "minimize" else -math.inf
        self._tried: set[Hashable] = set()
        for one in trials:
            self._add(one)

    def suggest(self, number: int) -> dict[str, Any]:
        """The parameters of trial `number`, which runs from now on as far as later suggestions are concerned.

        They are other ones than those of earlier trials, as long as there are any.
        """
        params = self._drawn(number, 0)
        for again in range(1, _DRAWS):
            if identity(params) not in self._tried:
                break
            params = self._drawn(number, again)
        known = combinations(self._space) if identity(params) in self._tried else None
        if left := [one for one in known or () if identity(one) not in self._tried]:
            params = left[random.Random(f"{self._options['seed']}:{number}").randrange(len(left))]
        self._add_trial(OptunaState.RUNNING, params, None)
        return params

    def _drawn(self, number: int, again: int) -> dict[str, Any]:
        """What the sampler suggests for a trial; `again`: after so many suggestions that were tried already."""
        place = f"{number}:{again}" if again else str(number)
        if self._sampler == QMC:
            from dispatcher.tuning.quasi import point

            # Beyond the numbers that trials have.
            return point(self._space, self._options["seed"], number + again * _QMC_AGAIN)
        seed = int.from_bytes(hashlib.sha256(f"{self._options['seed']}:{place}".encode()).digest()[:4])
        self._study.sampler = _make(self._sampler, self._options, seed)
        asked = self._study.ask()
        params: dict[str, Any] = {}
        for name, one in self._space.items():
            if one.is_active(params):
                params[name] = _asked(asked, name, one)
        # What counts is what the journal will say: rounded values.
        self._study.tell(asked, state=OptunaState.FAIL)
        return params

    def _add(self, one: TrialState) -> None:
        if one.status in OPEN:
            self._add_trial(OptunaState.RUNNING, one.params, None)
        elif one.status is Status.DONE:
            self._add_trial(OptunaState.COMPLETE, one.params, one.value)
        elif one.status is Status.PRUNED:
            self._add_trial(OptunaState.PRUNED, one.params, None, one.rungs)
        elif one.is_bad:
            self._add_trial(OptunaState.COMPLETE, one.params, self._worst)
        elif one.status is Status.FAILED:
            self._add_trial(OptunaState.FAIL, one.params, None)

    def _add_trial(
        self,
        state: OptunaState,
        params: Mapping[str, Any],
        value: float | None,
        rungs: Mapping[int, float | None] = MappingProxyType({}),
    ) -> None:
        if state is not OptunaState.FAIL:
            self._tried.add(identity(params))
        internal: dict[str, Any] = {}
        distributions: dict[str, BaseDistribution] = {}
        for name, given in params.items():
            _note(name, self._space[name], given, internal, distributions)
        reached = {step: found for step, found in rungs.items() if found is not None}
        trial = create_trial(
            state=state, params=internal, distributions=distributions, value=value, intermediate_values=reached
        )  # fmt: skip
        self._study.add_trial(trial)


def _note(
    name: str, one: Distribution, value: Any, internal: dict[str, Any], distributions: dict[str, BaseDistribution]
) -> None:
    """Add a value as Optuna has it: that of a range among choices is a parameter of its own."""
    distributions[name] = _distribution(one)
    if one.kind != "choice":
        internal[name] = value
        return
    internal[name] = place = one.index(value)
    if place is not None and place in one.ranges:
        _note(_within(name, place), one.ranges[place], value, internal, distributions)


def _asked(asked: optuna.Trial, name: str, one: Distribution) -> Any:
    """The value that Optuna suggests for a parameter."""
    found = _distribution(one)
    if isinstance(found, CategoricalDistribution):
        place = asked.suggest_categorical(name, found.choices)
        return _asked(asked, _within(name, place), one.ranges[place]) if place in one.ranges else one.choices[place]
    if isinstance(found, IntDistribution):
        return asked.suggest_int(name, found.low, found.high, step=found.step, log=found.log)
    assert isinstance(found, FloatDistribution)
    return one.rounded(asked.suggest_float(name, found.low, found.high, step=found.step, log=found.log))


def _within(name: str, place: Any) -> str:
    return f"{name}[{place}]"


def _distribution(one: Distribution) -> BaseDistribution:
    if one.kind == "choice":
        # By their places: Optuna takes no lists and mappings, and takes 1 and true for the same.
        return CategoricalDistribution(range(len(one.choices)))
    low, high = one.choices
    if one.kind == "integer":
        step = int(one.step or 1)
        return IntDistribution(low, high - (high - low) % step, log=one.log, step=step)
    if one.step is not None:
        return FloatDistribution(low, at_step(low, high, one.step, steps_within(low, high, one.step)), step=one.step)
    return FloatDistribution(low, high, log=one.kind == "log_uniform")


def _make(name: str, options: Mapping[str, int], seed: int) -> optuna.samplers.BaseSampler:
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=options["startup"])
