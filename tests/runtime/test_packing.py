from __future__ import annotations

import itertools

import numpy as np
import pytest

from dispatcher.runtime.packing import IGNORED, ROW_LENGTH, Batch, pack, pad_rows, training_batches
from dispatcher.runtime.vocabulary import BOUNDARY


def some_names(count, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(1, 9, size=generator.integers(1, 40)).astype(np.int32) for _ in range(count)]


def unpack(batch: Batch):
    """The names of a batch, read from the targets alone."""
    names = []
    for row in batch.targets:
        counted = row[row != IGNORED]
        ends = np.flatnonzero(counted == BOUNDARY)
        names += [tuple(part[part != BOUNDARY].tolist()) for part in np.split(counted, ends + 1)[:-1]]
    return names


def test_packing_keeps_every_name_whole_and_in_order():
    names = some_names(100)
    assert unpack(pack(names)) == [tuple(name.tolist()) for name in names]


def test_inputs_are_the_targets_one_step_earlier():
    batch = pack(some_names(100))
    counted = batch.targets[:, :-1] != IGNORED
    goes_on = counted & (batch.targets[:, :-1] != BOUNDARY)
    assert np.array_equal(batch.inputs[:, 1:][goes_on], batch.targets[:, :-1][goes_on])
    assert (batch.inputs[:, 1:][counted & ~goes_on] == BOUNDARY).all()
    assert (batch.inputs[:, 0] == BOUNDARY).all()


def test_the_longest_name_fills_a_row_and_a_longer_one_is_refused():
    assert pack([np.ones(ROW_LENGTH - 1, np.int32)]).targets[0, -1] == BOUNDARY
    with pytest.raises(ValueError, match="does not fit"):
        pack([np.ones(ROW_LENGTH, np.int32)])


def test_padding_adds_rows_that_count_nowhere():
    batch = pack(some_names(20))
    padded = pad_rows(batch, 16)
    assert len(padded.inputs) % 16 == 0
    assert unpack(padded) == unpack(batch)
    assert pad_rows(padded, 16).inputs.shape == padded.inputs.shape


def test_every_epoch_has_every_name_once_in_another_order():
    names = some_names(50)
    wanted = sorted(tuple(name.tolist()) for name in names)
    stream = itertools.chain.from_iterable(map(unpack, training_batches(names, 2, np.random.default_rng(0))))
    first, second = list(itertools.islice(stream, 50)), list(itertools.islice(stream, 50))
    assert sorted(first) == sorted(second) == wanted
    assert first != second


def test_batches_follow_the_seed():
    def targets(seed):
        batches = training_batches(some_names(50), 3, np.random.default_rng(seed))
        return np.stack([batch.targets for batch in itertools.islice(batches, 10)])

    assert np.array_equal(targets(1), targets(1))
    assert not np.array_equal(targets(1), targets(2))


def test_nothing_to_train_on_is_an_error():
    with pytest.raises(ValueError, match="no names"):
        next(training_batches([], 2, np.random.default_rng(0)))
