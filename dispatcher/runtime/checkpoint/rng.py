"""The state of all random number generators of a process, as JSON, so that reading it cannot execute code."""

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
        """The current state. `key` comes from `jax.random.key` or the older `jax.random.PRNGKey`; any shape."""
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(legacy=False),
            key=key,
            generators={name: each.bit_generator.state for name, each in (generators or {}).items()},
        )

    def restore(self, generators: Mapping[str, np.random.Generator] | None = None) -> jax.Array | None:
        """Set Python's, NumPy's and the named generators to this state, and return the JAX key."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # type: ignore[arg-type]  # from get_state
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
    def from_json(cls, saved: Any, where: str) -> RandomState:
        """The inverse of `to_json`; `where` is the file, for the error."""
        try:
            if saved["format"] > _FORMAT:
                raise FormatError(f"{where}: format {saved['format']}; this dispatcher knows format {_FORMAT}")
            version, words, gauss = saved["python"]
            return cls(
                python=(version, tuple(words), gauss),
                numpy=_unplain(saved["numpy"]),
                key=None if saved["jax"] is None else _key_from_json(saved["jax"]),
                generators={name: _unplain(state) for name, state in saved["generators"].items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedCheckpointError(f"{where}: not the state of random number generators: {error!r}") from error


def dump(states: list[dict[str, Any]]) -> bytes:
    """The file `rng`: the results of `to_json` on all processes, in their order."""
    return json.dumps(states).encode() + b"\n"


def load(data: bytes, process: int, where: str) -> RandomState:
    """The state of one process; that of process 0 for one that did not exist at the save."""
    try:
        states = json.loads(data)
        saved = states[process if process < len(states) else 0]
    except (ValueError, IndexError, TypeError) as error:
        raise DamagedCheckpointError(f"{where}: not the state of random number generators: {error!r}") from error
    return RandomState.from_json(saved, where)


def _key_to_json(key: jax.Array) -> dict[str, Any]:
    typed = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    data = np.asarray(jax.random.key_data(key) if typed else key)
    return {
        "typed": bool(typed),
        "impl": str(jax.random.key_impl(key)) if typed else _default_impl(),
        "shape": list(data.shape),
        "words": [int(word) for word in data.reshape(-1)],
    }


def _key_from_json(saved: Mapping[str, Any]) -> jax.Array:
    data = jax.numpy.asarray(np.array(saved["words"], dtype=np.uint32).reshape(saved["shape"]))
    if saved["typed"]:
        typed: jax.Array = jax.random.wrap_key_data(data, impl=saved["impl"])
        return typed
    # Keys without a type do not have their implementation: JAX uses the current default for them.
    if saved["impl"] != _default_impl():
        raise CheckpointError(
            f"the JAX key in the checkpoint has the PRNG implementation {saved['impl']!r}, but this process uses "
            f"{_default_impl()!r}: set jax_default_prng_impl to the first, or use jax.random.key"
        )
    return data


def _default_impl() -> str:
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
