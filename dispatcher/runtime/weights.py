"""Weights on disk: one .npz file of plain arrays, without pickle, complete or not there at all."""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from flax import nnx

from dispatcher.errors import FormatError
from dispatcher.runtime.model import CharacterModel, ModelSizes
from dispatcher.runtime.vocabulary import Vocabulary

FORMAT_VERSION: Final = 1
# The one array that is no parameter: a JSON object as a string, since .npz has no place for anything but arrays.
DESCRIPTION: Final = "description"


def save_model(path: str | os.PathLike[str], model: CharacterModel, vocabulary: Vocabulary) -> None:
    """Write all parameters, the model's sizes and its alphabet to `path`, in place of what was there.

    The same weights give the same bytes, so an attempt that is repeated changes nothing.
    """
    description = {"format": FORMAT_VERSION, "sizes": asdict(model.sizes), "alphabet": vocabulary.alphabet}
    write_arrays(Path(path), {DESCRIPTION: np.array(json.dumps(description)), **arrays_of(model)})


def save_adapters(path: str | os.PathLike[str], model: nnx.Module) -> None:
    """Write the low-rank adapters alone: with the pretrained weights they give the model again."""
    write_arrays(Path(path), arrays_of(model, nnx.LoRAParam))


def load_model(path: str | os.PathLike[str]) -> tuple[CharacterModel, Vocabulary]:
    """The model and the vocabulary that `save_model` wrote; a FormatError names what does not fit."""
    arrays = read_arrays(Path(path))
    if DESCRIPTION not in arrays:
        raise FormatError(f"{path}: no array {DESCRIPTION!r}: this is not a file of a model's weights")
    description = json.loads(str(arrays.pop(DESCRIPTION)))
    if description["format"] != FORMAT_VERSION:
        raise FormatError(f"{path}: written in format {description['format']}, this version reads {FORMAT_VERSION}")
    sizes = ModelSizes(**description["sizes"])
    model = nnx.eval_shape(lambda: CharacterModel(sizes, rngs=nnx.Rngs(0)))
    fill(model, arrays, where=str(path))
    return model, Vocabulary(description["alphabet"])


def arrays_of(model: nnx.Module, kind: type[nnx.Param[Any]] = nnx.Param) -> dict[str, np.ndarray[Any, Any]]:
    """The parameters of `kind`, each under its path in the model, such as `input_gates/kernel`."""
    flat = nnx.to_flat_state(nnx.state(model, kind))
    return {"/".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in flat}


def fill(model: nnx.Module, arrays: Mapping[str, np.ndarray[Any, Any]], *, where: str) -> None:
    """Give every parameter of `model` the array of its path; a FormatError when a name, shape or type differs."""
    state = nnx.state(model, nnx.Param)
    wanted = {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(state)}
    if wanted.keys() != arrays.keys():
        missing, unknown = sorted(wanted.keys() - arrays.keys()), sorted(arrays.keys() - wanted.keys())
        raise FormatError(f"{where}: missing arrays {missing}, unknown arrays {unknown}")
    for name, leaf in wanted.items():
        value = arrays[name]
        if value.shape != leaf.shape or value.dtype != leaf.dtype:
            raise FormatError(
                f"{where}: {name} is {value.dtype}{list(value.shape)}, the model has {leaf.dtype}{list(leaf.shape)}"
            )
        leaf.set_value(jax.numpy.asarray(value))
    nnx.update(model, state)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Publish `arrays` as `path` by rename: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            # Without it a power loss after the rename can leave an empty file under the final name.
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays of an .npz file; pickled content is refused."""
    try:
        # Opened here, so that a missing file is told apart from one that is no archive.
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, ValueError) as error:
        raise FormatError(f"{path}: not an .npz file of plain arrays, or damaged: {error}") from None
