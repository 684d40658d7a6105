"""How fast a training runs, as it says itself; its profile; what its bits depend on; the cache of what is compiled."""

from __future__ import annotations

import dataclasses
import functools
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import pytest
from flax import nnx
from small_trainings import CLASSES, FEATURES, Classification, made
from written_metrics import read_metrics

from dispatcher.runtime.training import loop, surroundings
from dispatcher.runtime.training.speed import Stopwatch

pytestmark = pytest.mark.demo

FLOPS = 3e6
PEAK = 1e9


class Counted(Classification):
    """Says how many operations a step has. Its loss counts half rows."""

    UNIT = "halves"

    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def flops(self, batch: Any) -> float:
        return FLOPS * len(batch["x"]) / 8

    def evaluations(self) -> Any:
        return {}

    BEST = None

    def loss(self, model: Any, batch: Any, rngs: Any) -> Any:
        losses, metrics = super().loss(model, batch, rngs)
        return (losses * 2, 0 * losses + 2), metrics


def test_the_stopwatch_leaves_out_pauses() -> None:
    now = [100.0]
    watch = Stopwatch(clock=lambda: now[0])
    words: dict[str, Any] = {"rows": 8, "units": 80.0, "unit": "tokens", "flops": 1e6, "peak": 1e7}
    assert watch.read(**words) == {}
    watch.go_on()
    watch.counted(3)
    watch.waited(0.5)
    now[0] += 4
    watch.pause()
    now[0] += 50
    watch.go_on()
    watch.counted(1)
    watch.waited(1.5)
    now[0] += 4
    expected = {"step_s": 2.0, "rows_per_s": 4.0, "tokens_per_s": 40.0, "data_wait": 0.25, "mfu": 0.05}
    assert watch.read(**words) == {f"speed/{name}": value for name, value in expected.items()}
    # It has begun anew, and goes on.
    watch.counted(1)
    now[0] += 1
    assert watch.read(**{**words, "peak": None})["speed/step_s"] == 1
    assert "speed/mfu" not in watch.read(**{**words, "peak": None})


def test_evaluations_and_saves_are_no_part_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    class Slow(Classification):
        def evaluated(self) -> dict[str, float]:
            now[0] += 1000
            return super().evaluated()

    monkeypatch.setattr(loop, "Stopwatch", functools.partial(Stopwatch, clock=clock))
    job = made(tmp_path, cls=Slow, steps=4, eval_every=1)
    job()
    times_s = [line["speed/step_s"] for line in read_metrics(job.spec.result_path("metrics.jsonl"))]
    assert len(times_s) == 4
    assert max(times_s) < 10


def test_speeds_and_the_use_of_a_known_chip_and_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = made(tmp_path, "unknown", Counted, steps=2)
    unknown()
    (line, _) = read_metrics(unknown.spec.result_path("metrics.jsonl"))
    assert line.keys() >= {"speed/step_s", "speed/rows_per_s", "speed/halves_per_s", "speed/data_wait"}
    assert "speed/mfu" not in line, "a processor's peak is not known"
    monkeypatch.setattr(loop, "PEAK_FLOPS", {jax.devices()[0].device_kind: PEAK})
    # Of a block of two steps the shapes are those of one.
    job = made(tmp_path, "known", Counted, steps=8, steps_per_call=2, log_every=2, profile=[3, 5])
    job()
    known = read_metrics(job.spec.result_path("metrics.jsonl"))
    assert [line["step"] for line in known] == [2, 4, 6, 8]
    for line in known:
        assert line["speed/mfu"] == pytest.approx(FLOPS / line["speed/step_s"] / PEAK)
        assert line["speed/halves_per_s"] == pytest.approx(2 * line["speed/rows_per_s"])
        assert 0 <= line["speed/data_wait"] <= 1
    traces = list(job.spec.result_path("profile").rglob("*.xplane.pb"))
    assert len(traces) == 1
    assert traces[0].stat().st_size > 1000
    assert not unknown.spec.result_path("profile").exists()


def test_what_the_bits_depend_on_is_saved_and_a_difference_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = surroundings.found()
    assert found["jaxlib"] == version("jaxlib")
    assert found["devices"] == jax.device_count()
    made(tmp_path, cls=Counted, steps=2)()
    with caplog.at_level(logging.WARNING):
        made(tmp_path, cls=Counted, steps=3)()
        assert "bit for bit" not in caplog.text
        monkeypatch.setenv("XLA_FLAGS", "--another")
        made(tmp_path, cls=Counted, steps=4)()
    assert f"not bit for bit as before: xla_flags {found['xla_flags']!r} then, '--another' now" in caplog.text
    assert "jaxlib" not in caplog.text


@pytest.mark.parametrize(
    ("platform", "flags", "is_told"),
    [
        ("cpu", "", False),
        ("gpu", "", True),
        ("gpu", "--xla_gpu_autotune_level=0", True),
        ("gpu", "--xla_gpu_deterministic_ops=false", True),
        ("gpu", "--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=0", True),
        ("gpu", "--xla_gpu_deterministic_ops", False),
        ("gpu", "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true", False),
    ],
)
def test_a_training_on_gpus_tells_that_it_is_not_exact(
    platform: str,
    flags: str,
    is_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    job = made(tmp_path, cls=Counted, steps=2)
    job.spec = dataclasses.replace(job.spec, hardware=dataclasses.replace(job.spec.hardware, platform=platform))
    with caplog.at_level(logging.WARNING):
        job.prepare()
    assert ("XLA_FLAGS: --xla_gpu_deterministic_ops=true" in caplog.text) == is_told


def test_compiled_programs_of_accelerators_are_kept_by_the_version_of_jaxlib(tmp_path: Path) -> None:
    config: Any = jax.config
    before = getattr(config, surroundings.CACHE)
    spec = made(tmp_path).spec
    accelerator = dataclasses.replace(spec, hardware=dataclasses.replace(spec.hardware, platform="cuda"))
    try:
        config.update(surroundings.CACHE, None)
        surroundings.keep_compiled(spec)
        assert getattr(config, surroundings.CACHE) is None
        surroundings.keep_compiled(accelerator)
        place = spec.hardware.cluster.root / "compiled" / f"jaxlib-{version('jaxlib')}"
        assert getattr(config, surroundings.CACHE) == str(place)
        # What the user has set stays.
        config.update(surroundings.CACHE, "/elsewhere")
        surroundings.keep_compiled(accelerator)
        assert getattr(config, surroundings.CACHE) == "/elsewhere"
    finally:
        config.update(surroundings.CACHE, before)
