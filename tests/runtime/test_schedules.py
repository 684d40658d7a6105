from __future__ import annotations

import numpy as np
import pytest

from dispatcher.errors import ConfigError
from dispatcher.runtime.schedules import ScheduleConfig, make_schedule


def rates(steps, at, **config):
    schedule = make_schedule(ScheduleConfig(**config), steps)
    return [float(schedule(np.int32(step))) for step in at]


def test_constant_rises_in_a_straight_line_and_stays():
    found = rates(100, [0, 5, 10, 11, 99, 500], kind="constant", lr=2.0, warmup=0.1)
    np.testing.assert_allclose(found, [0, 1, 2, 2, 2, 2], rtol=1e-6)


def test_cosine_falls_along_half_a_cosine_to_its_end():
    found = rates(110, [10, 35, 60, 85, 110, 200], kind="cosine", lr=2.0, warmup=10 / 110, min_lr_ratio=0.1)
    by_hand = [0.2 + 1.8 * (1 + np.cos(np.pi * part)) / 2 for part in (0, 0.25, 0.5, 0.75, 1, 1)]
    np.testing.assert_allclose(found, by_hand, rtol=1e-6)


def test_wsd_rises_stays_and_falls():
    found = rates(
        100, [0, 5, 10, 40, 79, 80, 90, 100, 101], kind="wsd", lr=1.0, warmup=0.1, decay=0.2, min_lr_ratio=0.5
    )
    np.testing.assert_allclose(found, [0, 0.5, 1, 1, 1, 1, 0.75, 0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("kind", ["constant", "cosine", "wsd"])
@pytest.mark.parametrize("steps", [1, 2, 3, 1000])
def test_every_length_and_no_warmup_give_finite_rates_that_are_never_negative(kind, steps):
    for warmup in (0.0, 0.05):
        found = rates(steps, range(steps), kind=kind, lr=1e-3, warmup=warmup)
        assert np.isfinite(found).all()
        assert min(found) >= 0
        assert max(found) <= 1.001e-3
    assert rates(steps, [0], kind=kind, lr=1e-3, warmup=0.0) == [pytest.approx(1e-3)]


def test_fractions_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"optimization\.warmup = 5: expected a fraction"):
        ScheduleConfig(warmup=5)
    with pytest.raises(ConfigError, match=r"optimization\.lr = -1: expected a number, 0 or more"):
        ScheduleConfig(lr=-1)
    with pytest.raises(ConfigError, match=r"warmup 0\.5 \+ decay 0\.6: expected at most 1"):
        ScheduleConfig(kind="wsd", warmup=0.5, decay=0.6)
