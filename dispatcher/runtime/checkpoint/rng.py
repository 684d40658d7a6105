"""The state of every random number generator of a process, as JSON: nothing that is read back is ever executed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import numpy as np

from dispatcher.errors import CheckpointError, DamagedCheckpointError, FormatError

_FORMAT: Final = 1


@dataclass(frozen=True)
class RandomState:
    """Python's and NumPy's global generators, the job's JAX key, and named NumPy generators of its own."""

    python: tuple[Any, ...]
    numpy: Mapping[str, Any]
    key: jax.Array | None = None
    generators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def capture(
        cls, key: jax.Array | None = None, generators: Mapping[str, np.random.Generator] | None = None
    ) -> RandomState:
        """The state now. `key` is a key of `jax.random.key` or an old one of `jax.random.PRNGKey`, of any shape."""
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(legacy=False),
            key=key,
            generators={name: each.bit_generator.state for name, each in (generators or {}).items()},
        )

    def restore(self, generators: Mapping[str, np.random.Generator] | None = None) -> jax.Array | None:
        """Set Python's, NumPy's and the named generators to this state, and return the JAX key."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # type: ignore[arg-type]  # as get_state gave it
        for name, generator in (generators or {}).items():
            generator.bit_generator.state = self.generators[name]
        return self.key

    def to_json(self) -> dict[str, Any]:
        """This state as plain data."""
        version, words, gauss = self.python
        return {
            "format": _FORMAT,
            "python": [version, list(words), gauss],
            "numpy": _plain(self.numpy),
            "jax": None if self.key is None else _key_to_json(self.key),
            "generators": {name: _plain(state) for name, state in self.generators.items()},
        }

    @classmethod
    def from_json(cls, said: Any, where: str) -> RandomState:
        """What `to_json` gave; `where` is the file, for the error."""
        try:
            if said["format"] > _FORMAT:
                raise FormatError(f"{where}: format {said['format']}; this dispatcher knows format {_FORMAT}")
            version, words, gauss = said["python"]
            return cls(
                python=(version, tuple(words), gauss),
                numpy=_unplain(said["numpy"]),
                key=None if said["jax"] is None else _key_from_json(said["jax"]),
                generators={name: _unplain(state) for name, state in said["generators"].items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedCheckpointError(f"{where}: not the state of random number generators: {error!r}") from error


def dump(states: list[dict[str, Any]]) -> bytes:
    """The file `rng`: what `to_json` gave on each process, in their order."""
    return json.dumps(states).encode() + b"\n"


def load(data: bytes, process: int, where: str) -> RandomState:
    """The state of one process; one that was not there at the save starts as the first one did."""
    try:
        states = json.loads(data)
        said = states[process if process < len(states) else 0]
    except (ValueError, IndexError, TypeError) as error:
        raise DamagedCheckpointError(f"{where}: not the state of random number generators: {error!r}") from error
    return RandomState.from_json(said, where)


def _key_to_json(key: jax.Array) -> dict[str, Any]:
    typed = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    data = np.asarray(jax.random.key_data(key) if typed else key)
    return {
        "typed": bool(typed),
        "impl": str(jax.random.key_impl(key)) if typed else _default_kind(),
        "shape": list(data.shape),
        "words": [int(word) for word in data.reshape(-1)],
    }


def _key_from_json(said: Mapping[str, Any]) -> jax.Array:
    data = jax.numpy.asarray(np.array(said["words"], dtype=np.uint32).reshape(said["shape"]))
    if said["typed"]:
        typed: jax.Array = jax.random.wrap_key_data(data, impl=said["impl"])
        return typed
    # The old keys do not carry their kind: JAX takes them for whatever the setting says now.
    if said["impl"] != _default_kind():
        raise CheckpointError(
            f"the JAX key in the checkpoint is of the kind {said['impl']!r}, and this process is set to "
            f"{_default_kind()!r}: set jax_default_prng_impl to the first, or use jax.random.key"
        )
    return data


def _default_kind() -> str:
    settings: Any = jax.config
    return str(settings.jax_default_prng_impl)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "array": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def _unplain(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"dtype", "array"}:
        return np.array(value["array"], dtype=value["dtype"])
    return {key: _unplain(each) for key, each in value.items()}
