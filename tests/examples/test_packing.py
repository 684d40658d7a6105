from __future__ import annotations

import numpy as np
import pytest
from jobs._packing import SEQ_LEN, PackedNames, pack
from jobs._vocabulary import BOUNDARY

from dispatcher.runtime.language.tokens import IGNORE_INDEX, Tokens


def some_names(count, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(1, 9, size=generator.integers(1, 40)).astype(np.int32) for _ in range(count)]


def unpack(batch: Tokens):
    """The names of a batch, read from the targets alone."""
    names = []
    for row in batch.targets:
        counted = row[row != IGNORE_INDEX]
        ends = np.flatnonzero(counted == BOUNDARY)
        names += [tuple(part[part != BOUNDARY].tolist()) for part in np.split(counted, ends + 1)[:-1]]
    return names


def test_packing_keeps_every_name_whole_and_in_order():
    names = some_names(100)
    assert unpack(pack(names)) == [tuple(name.tolist()) for name in names]


def test_inputs_are_the_targets_one_step_earlier():
    batch = pack(some_names(100))
    counted = batch.targets[:, :-1] != IGNORE_INDEX
    goes_on = counted & (batch.targets[:, :-1] != BOUNDARY)
    assert np.array_equal(batch.inputs[:, 1:][goes_on], batch.targets[:, :-1][goes_on])
    assert (batch.inputs[:, 1:][counted & ~goes_on] == BOUNDARY).all()
    assert (batch.inputs[:, 0] == BOUNDARY).all()


def test_the_longest_name_fills_a_row_and_a_longer_one_is_refused():
    assert pack([np.ones(SEQ_LEN - 1, np.int32)]).targets[0, -1] == BOUNDARY
    with pytest.raises(ValueError, match="does not fit"):
        pack([np.ones(SEQ_LEN, np.int32)])


def test_a_name_is_a_segment_of_its_row_and_padding_is_none():
    batch = pack(some_names(100))
    assert np.array_equal(batch.segment_ids == 0, batch.targets == IGNORE_INDEX)
    for inputs, segments in zip(batch.inputs, batch.segment_ids, strict=True):
        starts = (inputs == BOUNDARY) & (segments > 0)
        assert np.array_equal(np.cumsum(starts)[segments > 0], segments[segments > 0])


def test_a_source_has_the_packed_rows_in_their_order():
    names = some_names(50)
    source, batch = PackedNames(names), pack(names)
    assert len(source) == len(batch.inputs)
    for index in range(len(source)):
        for array, whole in zip(source[index], batch, strict=True):
            assert np.array_equal(array, whole[index])


def test_nothing_to_train_on_is_an_error():
    with pytest.raises(ValueError, match="no names"):
        PackedNames([])
