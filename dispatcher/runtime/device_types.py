"""The types in which devices hold numbers, and a check that every value survives the conversion.

Without JAX_ENABLE_X64 devices hold numbers of at most 32 bits (complex ones 64), and JAX cuts integers down to that
without a word: 2**32 + 7 arrives as 7. So what comes from the host is converted here first. Integers keep their value,
or are refused. Numbers with a fraction are rounded as in any training with float32; one that would become an infinity
is refused, and whole numbers that are rounded are logged once, because they may be ids. NaN and infinities in the data
pass. Text, dates, objects and missing values have no type on a device, and are refused.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dispatcher.errors import ConfigError

# float32 has every whole number up to here; the next one is rounded to it.
_WHOLE: Final = 2**24
_ADVICE: Final = (
    "scale the values, number them from 0, or split them into two arrays (id // 2**16, id % 2**16); or set "
    "JAX_ENABLE_X64 to 1 in the env of the entry or method, and devices hold 64 bits"
)
_TOO_LONG: Final = (np.longdouble, np.clongdouble)

_log = logging.getLogger(__name__)
# The arrays whose rounded whole numbers were logged.
_told: set[str] = set()


def for_devices(tree: Any) -> Any:
    """A pytree of host arrays in the types that devices have; ConfigError names an array whose values would change."""
    return jax.tree_util.tree_map_with_path(_for_devices, tree)


def check_types(tree: Any) -> None:
    """ConfigError names an array of a type that no device has, whatever its values are."""
    for path, array in jax.tree_util.tree_leaves_with_path(tree):
        _device_type(path, array)


def converted(name: str, array: NDArray[Any], kind: Any, *, advice: str = "") -> NDArray[Any]:
    """A host array in the type `kind`; ConfigError when that would change a value, with `name` first, `advice` last."""
    if array.dtype == kind:
        return array
    if jnp.issubdtype(array.dtype, jnp.complexfloating) and not jnp.issubdtype(kind, jnp.complexfloating):
        raise ConfigError(f"{name} has complex numbers: expected {np.dtype(kind)}")
    if jnp.issubdtype(kind, jnp.integer):
        _check_integers(name, array, kind, advice)
    elif array.dtype.kind in "fc" and array.dtype.itemsize > np.dtype(kind).itemsize:
        return _rounded(name, array, kind, advice)
    return array.astype(kind)


def _for_devices(path: Any, array: Any) -> Any:
    kind = _device_type(path, array)
    if array.dtype == kind:
        return np.asarray(array)
    name = f"{_name(path)} is {array.dtype} in the data and"
    return converted(name, np.asarray(array), kind, advice=f": {_ADVICE}")


def _device_type(path: Any, array: Any) -> Any:
    """The type that an array has on a device."""
    kind = array.dtype
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ConfigError(f"{_name(path)} has masked values in the data: fill them, and give the mask as an array")
    if kind in _TOO_LONG:
        raise ConfigError(f"{_name(path)} is {kind} in the data, which no device has: convert it to float32")
    if any(jnp.issubdtype(kind, known) for known in (np.number, np.bool_)):
        return jax.dtypes.canonicalize_dtype(kind)
    raise ConfigError(f"{_name(path)} is {kind} in the data: expected numbers; leave it out, or encode it")


def _check_integers(name: str, array: NDArray[Any], kind: Any, advice: str) -> None:
    if array.dtype == bool:
        return
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ConfigError(f"{name} has {array.dtype}: expected whole numbers, for {np.dtype(kind)}")
    if not array.size:
        return
    range_of = jnp.iinfo(kind)  # type: ignore[no-untyped-call]  # untyped in JAX
    least, most = int(range_of.min), int(range_of.max)
    lowest, highest = int(array.min()), int(array.max())
    if lowest < least or highest > most:
        raise ConfigError(
            f"{name} has {highest if highest > most else lowest}, which {np.dtype(kind)} does not have ({least} to "
            f"{most}){advice}"
        )


def _rounded(name: str, array: NDArray[Any], kind: Any, advice: str) -> NDArray[Any]:
    try:
        with np.errstate(over="raise"):
            rounded: NDArray[Any] = array.astype(kind)
    except FloatingPointError:
        with np.errstate(over="ignore"):
            lost = array[np.isfinite(array) & ~np.isfinite(array.astype(kind))]
        raise ConfigError(f"{name} has {lost.flat[0]}, which would be infinite in {np.dtype(kind)}{advice}") from None
    _tell_rounded_ids(name, array, rounded)
    return rounded


def _tell_rounded_ids(name: str, array: NDArray[Any], rounded: NDArray[Any]) -> None:
    """Log once where whole numbers were rounded."""
    # Two cheap passes; a NaN answers no comparison, and is taken for a large number.
    if name in _told or array.dtype.kind != "f" or not array.size:
        return
    if rounded.min() > -_WHOLE and rounded.max() < _WHOLE:
        return
    changed = array[(np.abs(rounded) >= _WHOLE) & (rounded != array) & (array == np.trunc(array)) & np.isfinite(array)]
    if changed.size:
        _told.add(name)
        first = changed.flat[0]
        _log.warning(
            "%s has whole numbers that %s rounds (%d becomes %d): right for quantities, but ids have to be integers",
            *(name, rounded.dtype, first, int(rounded.dtype.type(first))),
        )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "a row"
