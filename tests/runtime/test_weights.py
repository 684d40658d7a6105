from __future__ import annotations

import json

import numpy as np
import pytest

from dispatcher.errors import FormatError
from dispatcher.runtime import weights
from dispatcher.runtime.packing import pack
from dispatcher.runtime.weights import arrays_of, load_model, read_arrays, save_adapters, save_model, write_arrays


@pytest.fixture
def saved(tmp_path, model, vocabulary):
    path = tmp_path / "runs" / "a'; echo foo" / "weights.npz"
    save_model(path, model, vocabulary)
    return path


def altered(path, **changes):
    """Replace arrays of the file at `path`; None removes one."""
    arrays = {**read_arrays(path), **changes}
    write_arrays(path, {name: array for name, array in arrays.items() if array is not None})


def test_a_model_comes_back_with_its_vocabulary(saved, model, vocabulary, encoded):
    loaded, its_vocabulary = load_model(saved)
    assert its_vocabulary == vocabulary
    assert loaded.sizes == model.sizes
    expected, found = arrays_of(model), arrays_of(loaded)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    inputs = pack(encoded).inputs
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


def test_the_same_weights_give_the_same_bytes(saved, model, vocabulary):
    before = saved.read_bytes()
    save_model(saved, model, vocabulary)
    assert saved.read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(saved, model, vocabulary, monkeypatch):
    before = saved.read_bytes()

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_model(saved, model, vocabulary)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_pickled_content_is_refused(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, description=np.array([{"a": 1}], dtype=object))
    with pytest.raises(FormatError, match=r"not an \.npz file of plain arrays"):
        load_model(path)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 cut off"])
def test_what_is_no_archive_is_refused_by_name(tmp_path, content):
    path = tmp_path / "weights.npz"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"weights\.npz: not an \.npz"):
        load_model(path)


def test_a_truncated_file_is_refused(saved):
    content = saved.read_bytes()
    saved.write_bytes(content[: len(content) // 2])
    with pytest.raises(FormatError, match="damaged"):
        load_model(saved)


def test_a_missing_file_is_not_taken_for_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "weights.npz")


def test_an_array_of_another_shape_is_named_with_both_shapes(saved):
    altered(saved, **{"output/bias": np.zeros(9, np.float32)})
    with pytest.raises(FormatError, match=r"output/bias is float32\[9\], the model has float32\[8\]"):
        load_model(saved)


def test_an_array_of_another_type_is_named_with_both_types(saved):
    altered(saved, **{"output/bias": np.zeros(8)})
    with pytest.raises(FormatError, match=r"output/bias is float64\[8\], the model has float32\[8\]"):
        load_model(saved)


def test_missing_and_unknown_arrays_are_named(saved):
    altered(saved, **{"output/bias": None, "output/offset": np.zeros(8)})
    with pytest.raises(FormatError, match=r"missing arrays \['output/bias'\], unknown arrays \['output/offset'\]"):
        load_model(saved)


def test_a_newer_format_is_refused(saved):
    description = json.loads(str(read_arrays(saved)["description"]))
    altered(saved, description=np.array(json.dumps({**description, "format": 2})))
    with pytest.raises(FormatError, match="written in format 2, this version reads 1"):
        load_model(saved)


def test_adapters_are_no_model(tmp_path, model):
    save_adapters(tmp_path / "adapters.npz", model)
    with pytest.raises(FormatError, match="not a file of a model's weights"):
        load_model(tmp_path / "adapters.npz")
