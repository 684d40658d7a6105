"""Numbers arrive on the devices as they are in the data, by every way in, or are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from small_trainings import FEATURES, Classification, made, samples, trained

from dispatcher.errors import ConfigError, UsageError
from dispatcher.runtime.configuration import configuration
from dispatcher.runtime.device_types import converted, for_devices
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs.inference import InferenceJob
from dispatcher.runtime.language.tokens import TokenWindows
from dispatcher.runtime.rollout import pad_left
from dispatcher.runtime.training.data import Arrays, Streamed, read_batch

pytestmark = pytest.mark.demo

BEYOND = 2**32 + 7


def test_integers_that_fit_keep_their_values_and_others_are_refused() -> None:
    fit = for_devices({"a": np.array([-(2**31), 2**31 - 1]), "b": np.array([0, 2**32 - 1], np.uint64)})
    assert [array.dtype for array in fit.values()] == [np.int32, np.uint32]
    assert [array.tolist() for array in fit.values()] == [[-(2**31), 2**31 - 1], [0, 2**32 - 1]]
    for array, value in ((np.array([1, BEYOND]), BEYOND), (np.array([-(2**31) - 1, 2]), -(2**31) - 1)):
        with pytest.raises(ConfigError, match=f"a/ids is int64 in the data and has {value}, which int32"):
            for_devices({"a": {"ids": array}})
    with pytest.raises(ConfigError, match="has 4294967296, which uint32 does not have"):
        for_devices(np.array([2**32], np.uint64))
    assert for_devices({"none": np.zeros((0, 3), np.int64)})["none"].dtype == np.int32


def test_numbers_with_a_fraction_are_rounded_and_none_becomes_infinite() -> None:
    given = np.array([0.1, np.nan, np.inf, -np.inf, 1e-300])
    found = for_devices({"x": given})["x"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, given.astype(np.float32))
    with pytest.raises(ConfigError, match=r"x is float64 in the data and has -1e\+300, which would be infinite"):
        for_devices({"x": np.array([np.inf, -1e300])})
    with pytest.raises(
        ConfigError, match=r"x is complex128 in the data and has .*which would be infinite in complex64"
    ):
        for_devices({"x": np.array([1e300 + 1j])})
    half = np.ones(2, jax.numpy.bfloat16)
    assert for_devices({"x": half})["x"].dtype == half.dtype


def test_ids_in_floating_point_numbers_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        for_devices({"customer": np.array([np.nan, 2**24 + 1.0]), "price": np.array([2**24 + 1.5, 3.0])})
    told = "customer is float64 in the data and has whole numbers that float32 rounds (16777217 becomes 16777216)"
    assert [told in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["a"]), "x is <U1 in the data: expected numbers"),
        (np.array([b"a"]), "x is |S1 in the data: expected numbers"),
        (np.array(["a"], np.dtypes.StringDType()), "x is StringDType() in the data: expected numbers"),
        (np.array([2**70]), "x is object in the data: expected numbers"),
        (np.array([None, 1]), "x is object in the data: expected numbers"),
        (np.array(["2026-01-01"], "M8[D]"), "x is datetime64[D] in the data: expected numbers"),
        (np.zeros(1, [("a", int)]), "x is [('a', '<i8')] in the data: expected numbers"),
        (np.ones(1, np.longdouble), "x is float128 in the data, which no device has: convert it to float32"),
        (np.ma.array([1, 2], mask=[0, 1]), "x has masked values in the data: fill them"),
    ],
)
def test_what_no_device_has_is_refused(array: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        for_devices({"x": array})
    assert str(caught.value).startswith(message)
    with pytest.raises(ConfigError) as caught:
        Arrays({"x": array})
    assert str(caught.value).startswith(message)


def test_numbers_of_python_and_scalars_of_numpy_in_rows() -> None:
    rows = [{"y": 2**31 - 1, "z": np.int64(3), "list": [1, 2]}, {"y": 5, "z": np.int8(4), "list": [3, 4]}]
    batch = read_batch(rows, np.array([0, 1]))
    assert [batch[name].tolist() for name in ("y", "z", "list")] == [[2**31 - 1, 5], [3, 4], [[1, 2], [3, 4]]]
    with pytest.raises(ConfigError, match=f"y is int64 in the data and has {BEYOND}"):
        read_batch([{"y": 1}, {"y": BEYOND}], np.array([0, 1]))
    # NumPy stacks these as float64, and both are rounded.
    with pytest.raises(ConfigError, match=f"a row of the data has {2**63}, another one int64"):
        read_batch([{"y": 1}, {"y": 2**63}], np.array([0, 1]))
    with pytest.raises(ConfigError, match="masked values"):
        read_batch([{"y": np.ma.array([1], mask=[1])}] * 2, np.array([0, 1]))
    with pytest.raises(ConfigError, match="a row has masked values"):
        read_batch(np.ma.array([1, 2], mask=[1, 0]), np.array([0, 1]))


def test_values_given_for_a_models_arrays() -> None:
    assert converted("count", np.array([1, 2]), np.int8).tolist() == [1, 2]
    assert converted("mask", np.array([True]), np.int32).tolist() == [1]
    for array, message in (
        (np.array([300]), "count has 300, which int8 does not have"),
        (np.array([1.5]), "count has float64: expected whole numbers, for int8"),
        (np.array([1j]), "count has complex numbers: expected int8"),
    ):
        with pytest.raises(ConfigError, match=message):
            converted("count", array, np.int8)


class Ids(Classification):
    """Rows with ids, of which the last ones do not fit."""

    BEST = None
    WHERE = "data"

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return nnx.Linear(FEATURES, 4, rngs=rngs)

    def rows(self, place: str) -> dict[str, Any]:
        ids = np.arange(64) + (BEYOND if place == self.WHERE else 0)
        return {**samples(64, seed=1), "id": ids}

    def data(self) -> Any:
        return Arrays(self.rows("data"))

    def evaluations(self) -> Any:
        return {"held_out": Arrays(self.rows("evaluations"))}


class EvaluatedIds(Ids):
    WHERE = "evaluations"


class StreamedIds(Ids):
    def data(self) -> Any:
        return Streamed(Numbers())

    def evaluations(self) -> Any:
        return {}


class Numbers:
    def __next__(self) -> dict[str, Any]:
        return {"x": np.zeros(FEATURES, np.float32), "label": 0, "id": BEYOND}

    def __iter__(self) -> Numbers:
        return self

    def get_state(self) -> Any:
        return {}

    def set_state(self, state: Any) -> None:
        del state


@pytest.mark.parametrize("cls", [Ids, EvaluatedIds, StreamedIds])
@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_every_way_into_a_training_checks_values(tmp_path: Path, cls: type[Any], steps_per_call: int) -> None:
    with pytest.raises(ConfigError, match=r"id is int64 in the data and has \d+, which int32 does not have"):
        trained(tmp_path, cls=cls, steps=2, log_every=2, steps_per_call=steps_per_call)


def test_a_step_by_hand_and_arrays_to_start_from_check_values(tmp_path: Path) -> None:
    job = made(tmp_path, cls=Classification)
    rows = {name: array[:8] for name, array in samples(64, seed=1).items()}
    assert job.update({**rows, "label": rows["label"].astype(np.int64)})["loss"] > 0
    with pytest.raises(ConfigError, match=f"label is int64 in the data and has {BEYOND}"):
        job.update({**rows, "label": np.full(8, BEYOND)})

    class Counted(Classification):
        def start_from(self) -> Any:
            return {"dropout/rngs/count": np.uint64(BEYOND)}

    with pytest.raises(ConfigError, match=f"dropout/rngs/count has {BEYOND}, which uint32 does not have"):
        made(tmp_path, "counted", Counted).begin()


class Predicts(InferenceJob[Any, Any]):
    def run(self) -> None:
        return None

    def forward(self, model: Any, batch: Any) -> Any:
        return batch["id"]

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return nnx.Linear(FEATURES, 4, rngs=rngs)


def test_predictions_and_rollouts_check_values(tmp_path: Path) -> None:
    with configuration(Predicts.checked_config({})):
        job = Predicts(local(tmp_path, "predicts"))
    job._arrays = dict
    job._setup = job.setup
    with pytest.raises(ConfigError, match=f"id is int64 in the data and has {BEYOND}"):
        job.predict({"id": np.array([1, BEYOND])})
    for tokens, message in (
        ([np.int64(BEYOND)], f"text 1 has {BEYOND}, which int32 does not have"),
        ([1.5], "text 1 has float64: expected whole numbers"),
    ):
        with pytest.raises(ConfigError, match=message):
            job.rollout([[1], tokens], 2)
        with pytest.raises(ConfigError, match=message):
            pad_left([[1], tokens])
    with pytest.raises(UsageError, match=r"seed = 4294967296: expected 0 to 4294967295"):
        job.rollout([[1]], 2, seed=2**32)
    with pytest.raises(ConfigError, match=f"stop_token has {BEYOND}, which int32 does not have"):
        job.rollout([[1]], 2, stop_token=np.int64(BEYOND))


def test_tokens_beyond_32_bits_are_refused() -> None:
    windows = TokenWindows(np.array([1, 2, BEYOND]), 2)
    with pytest.raises(ConfigError, match=f"the data: holds the token {BEYOND}: expected 0 to 2147483647"):
        windows[0]


def test_with_64_bits_on_devices_values_stay_as_they_are() -> None:
    script = (
        "import numpy as np; from dispatcher.runtime.device_types import for_devices;"
        f"x = for_devices([np.array([{BEYOND}]), np.array([1e300])]); print(x[0].dtype, x[0][0], x[1].dtype, x[1][0])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script],
        env={"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split() == ["int64", str(BEYOND), "float64", "1e+300"]
