"""What is suggested next: the same from the same trials, within the space, and better than chance."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from dispatcher.run_state.facets.studies import Trial
from dispatcher.tuning.sampling import Sampling
from dispatcher.tuning.space import combinations, fits, params_at, read_space, saved
from dispatcher.tuning.trials import Status, TrialState

SPACE = {
    "lr": {"log_uniform": [1e-5, 1e-2]},
    "dropout": {"uniform": [0, 0.5]},
    "layers": {"integer": [2, 12]},
    "act": {"choice": ["relu", {"kind": "gelu"}, 1, True, [1, 2]]},
}


def settings(sampler: Mapping[str, Any], goal: str = "min", space: Mapping[str, Any] = SPACE) -> dict[str, Any]:
    return {"space": space, "sampler": sampler, "objective": {"value": "loss", "goal": goal}}


def state(number: int, params: Mapping[str, Any], value: float | None, status: Status = Status.DONE) -> TrialState:
    return TrialState(number, Trial(f"s_{number}", 1, params, 0), status, 1, value)


def random_params(generator: random.Random) -> dict[str, Any]:
    return {
        "lr": 10 ** generator.uniform(-5, -2), "dropout": generator.uniform(0, 0.5),
        "layers": generator.randint(2, 12), "act": "relu",
    }  # fmt: skip


def search(study: Mapping[str, Any], loss: Callable[[Mapping[str, Any]], float], count: int) -> list[TrialState]:
    """One trial after the other, each with all values before it."""
    found: list[TrialState] = []
    for number in range(count):
        params = Sampling(study, found).suggest(number)
        found.append(state(number, params, loss(params)))
    return found


def loss_of(params: Mapping[str, Any]) -> float:
    return (math.log10(params["lr"]) + 3.5) ** 2 + (params["dropout"] - 0.1) ** 2 + abs(params["layers"] - 6)


@pytest.mark.parametrize("sampler", [{"tpe": {"seed": 3, "startup": 4}}, {"random": {"seed": 3}}, {"qmc": {"seed": 3}}])
def test_suggestions_are_of_the_space_and_written_as_sweep_files_write_them(sampler: Mapping[str, Any]) -> None:
    study = settings(sampler)
    found = search(study, loss_of, 30)
    for one in found:
        assert 1e-5 <= one.params["lr"] <= 1e-2
        assert one.params["lr"] == float(f"{one.params['lr']:.6g}")
        assert 0 <= one.params["dropout"] <= 0.5
        assert type(one.params["layers"]) is int
        assert 2 <= one.params["layers"] <= 12
        assert any(one.params["act"] is choice for choice in SPACE["act"]["choice"])  # type: ignore[index]
    assert len({one.params["lr"] for one in found}) == 30
    assert [one.params for one in search(study, loss_of, 30)] == [one.params for one in found]
    other = settings({word: {**options, "seed": 4} for word, options in sampler.items()})
    assert search(other, loss_of, 1)[0].params != found[0].params


def test_several_at_once_are_the_same_as_one_after_the_other_while_none_has_ended() -> None:
    study = settings({"tpe": {"seed": 0, "startup": 2}})
    ended = search(study, loss_of, 6)
    together = Sampling(study, ended)
    at_once = [together.suggest(number) for number in (6, 7, 8)]
    assert len({str(params) for params in at_once}) == 3
    running = list(ended)
    for number, params in zip((6, 7, 8), at_once, strict=True):
        assert Sampling(study, running).suggest(number) == params
        running.append(state(number, params, None, Status.QUEUED))


def test_values_matter_and_failed_and_deleted_trials_do_not() -> None:
    study = settings({"tpe": {"seed": 0, "startup": 2}})
    ended = search(study, loss_of, 12)
    chosen = Sampling(study, ended).suggest(12)
    better = [state(one.number, one.params, -(one.value or 0.0)) for one in ended]
    assert Sampling(study, better).suggest(12) != chosen
    useless = [state(12, chosen, None, Status.FAILED), state(13, chosen, None, Status.DELETED)]
    assert Sampling(study, [*ended, *useless]).suggest(12) == chosen
    assert Sampling(settings({"tpe": {"seed": 0, "startup": 2}}, "max"), better).suggest(12) == chosen


@pytest.mark.parametrize("goal", ["min", "max"])
def test_tpe_is_better_than_chance_on_a_quadratic(goal: str) -> None:
    space = {"x": {"uniform": [-5, 5]}, "y": {"uniform": [-5, 5]}}
    sign = 1 if goal == "min" else -1

    def bowl(params: Mapping[str, Any]) -> float:
        return float(sign * ((params["x"] - 2) ** 2 + (params["y"] + 1) ** 2))

    def median_best(sampler: Callable[[int], Mapping[str, Any]]) -> float:
        best = []
        for seed in range(5):
            values = [sign * (one.value or 0.0) for one in search(settings(sampler(seed), goal, space), bowl, 40)]
            best.append(min(values))
        return sorted(best)[2]

    tpe = median_best(lambda seed: {"tpe": {"seed": seed, "startup": 10}})
    chance = median_best(lambda seed: {"random": {"seed": seed}})
    assert tpe < chance, f"best of 40: tpe {tpe:.3g}, random {chance:.3g}"
    assert tpe < 0.5


def test_quasi_random_points_fill_the_space_evenly_whatever_was_found() -> None:
    study = settings({"qmc": {"seed": 1}})
    found = search(study, loss_of, 64)
    exponents = sorted(math.log10(one.params["lr"]) for one in found)
    # One in each 64th of the range, as of a Sobol' sequence; random points leave a third of them empty.
    assert {int((exponent + 5) / 3 * 64) for exponent in exponents} == set(range(64))
    counts = Counter(one.params["layers"] for one in found)
    assert set(counts) == set(range(2, 13)) and max(counts.values()) - min(counts.values()) <= 2
    failed = [state(one.number, one.params, None, Status.FAILED) for one in found]
    assert Sampling(study, failed).suggest(64) == Sampling(study, []).suggest(64) == Sampling(study, found).suggest(64)


def test_a_long_study_gives_the_same_again() -> None:
    study = settings({"tpe": {"seed": 0, "startup": 10}})
    generator = random.Random(1)
    trials = []
    for number in range(1000):
        trials.append(state(number, random_params(generator), generator.random()))
    assert Sampling(study, trials).suggest(1000) == Sampling(study, trials).suggest(1000)


def test_pruned_trials_tell_the_sampler_what_is_bad() -> None:
    study = settings({"tpe": {"seed": 1, "startup": 2}})
    generator = random.Random(2)
    done = [state(0, random_params(generator), 1.0)]
    asked = [random_params(generator) for _ in range(10)]

    def suggested(values: list[float]) -> dict[str, Any]:
        pruned = [
            TrialState(1 + i, Trial("j", 1, params, 0), Status.PRUNED, 1, value, "at step 10", {10: value})
            for i, (params, value) in enumerate(zip(asked, values, strict=True))
        ]
        return Sampling(study, [*done, *pruned]).suggest(20)

    rising, falling = ([float(sign * i) for i in range(10)] for sign in (1, -1))
    assert suggested(rising) == suggested(rising)
    assert suggested(rising) != Sampling(study, done).suggest(20)
    assert suggested(rising) != suggested(falling), "among pruned trials those with better values are better"


RICH = {
    "width": {"integer": [16, 1024], "log": True},
    "depth": {"integer": [2, 21], "step": 6},
    "drop": {"uniform": [0, 0.5], "step": 0.1},
    "decay": {"choice": [0, {"log_uniform": [1e-5, 1e-1]}]},
    "opt": {"choice": ["adam", "sgd"]},
    "momentum": {"uniform": [0, 0.99], "when": {"opt": "sgd"}},
    "nesterov": {"choice": [True, False], "when": {"momentum": {"above": 0.5}}},
}


@pytest.mark.parametrize("sampler", [{"tpe": {"seed": 1, "startup": 5}}, {"random": {"seed": 1}}, {"qmc": {"seed": 1}}])
def test_steps_logarithms_fixed_values_and_conditions(sampler: Mapping[str, Any]) -> None:
    study = settings(sampler, space=RICH)
    space = read_space(RICH, [])
    assert saved(space) == RICH

    def loss(params: Mapping[str, Any]) -> float:
        return abs(math.log2(params["width"]) - 6) + params["decay"] + (params["opt"] == "adam")

    found = [one.params for one in search(study, loss, 60)]
    for params in found:
        assert fits(space, params)
        assert type(params["width"]) is int and 16 <= params["width"] <= 1024
        assert params["depth"] in (2, 8, 14, 20) and params["drop"] in (0, 0.1, 0.2, 0.3, 0.4, 0.5)
        assert params["decay"] == 0 or 1e-5 <= params["decay"] <= 1e-1
        assert ("momentum" in params) == (params["opt"] == "sgd")
        assert ("nesterov" in params) == (params.get("momentum", 0) > 0.5)
    assert {params["decay"] == 0 for params in found} == {True, False}
    assert {"nesterov" in params for params in found} == {True, False}
    assert [one.params for one in search(study, loss, 60)] == found
    if "random" in sampler:
        # Half of the widths are below the geometric mean, 128.
        assert 15 <= sum(params["width"] < 128 for params in found) <= 45
    assert not fits(space, {**found[0], "depth": 3})
    assert not fits(space, {name: value for name, value in found[0].items() if name != "width"})


@pytest.mark.parametrize("described, values", [
    ({"choice": ["a", "b", "c", "d"]}, ["a", "b", "c", "d"]),
    ({"integer": [2, 5]}, [2, 3, 4, 5]),
    ({"integer": [2, 8], "step": 2}, [2, 4, 6, 8]),
    ({"uniform": [0.1, 0.4], "step": 0.1}, [0.1, 0.2, 0.3, 0.4]),
])  # fmt: skip
def test_places_up_to_both_ends_have_a_value_and_values_have_equal_parts(described: Any, values: list[Any]) -> None:
    space = read_space({"x": described}, [])
    found = [params_at(space, {"x": place / 400})["x"] for place in range(401)]
    assert Counter(found[:400]) == dict.fromkeys(values, 100) and found[400] == values[-1]
    assert all(fits(space, {"x": value}) for value in found)
    assert not any(fits(space, {"x": value}) for value in (-1, 9, True, None))


def test_no_combination_is_suggested_twice_as_long_as_there_are_others() -> None:
    space = {
        "a": {"choice": [1, True, "1"]},
        "b": {"integer": [0, 4], "step": 2},
        "c": {"choice": [0, 1], "when": {"a": "1"}},
    }
    for sampler in ({"tpe": {"seed": 0, "startup": 2}}, {"random": {"seed": 0}}, {"qmc": {"seed": 0}}):
        found = search(settings(sampler, space=space), lambda params: params["b"], 12)
        assert len({str(one.params) for one in found}) == 12
    assert len(combinations(read_space(space, [])) or ()) == 12
    assert combinations(read_space(SPACE, [])) is None


@pytest.mark.parametrize("goal", ["min", "max"])
def test_trials_that_diverge_teach_the_sampler(goal: str) -> None:
    """Half of the space diverges: after some trials there, it is avoided."""
    study = settings({"tpe": {"seed": 2, "startup": 10}}, goal, {"lr": {"uniform": [0, 1]}})

    def searched(*, is_bad: bool) -> int:
        found: list[TrialState] = []
        for number in range(50):
            params = Sampling(study, found).suggest(number)
            one = state(number, params, params["lr"] if params["lr"] < 0.5 else None)
            if one.value is None:
                one = msgspec.structs.replace(one, status=Status.FAILED, is_bad=is_bad)
            found.append(msgspec.structs.replace(one, value=one.value and one.value * (1 if goal == "max" else -1)))
        return sum(one.params["lr"] >= 0.5 for one in found[10:])

    assert searched(is_bad=True) < searched(is_bad=False)
