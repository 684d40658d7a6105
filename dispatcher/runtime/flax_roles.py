"""The roles of a model's parameters, as the modules of Flax say them.

A parameter's role comes from the first of these that has one: its metadata, `nnx.Param(value, role="kernel")`; the
module of Flax to which it belongs, whose attributes say of which shape it is where nothing is stacked; its name, in
other modules. Modules of Linen inside of nnx.bridge.ToNNX do not exist beside their variables: they are asked while
they are initialized, also inside of nn.scan and nn.vmap, where nothing is stacked yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import flax.linen as nn
import jax.numpy as jnp
from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime.roles import Kernel, Role, named, stated

# A key in the metadata of a variable.
ROLE: Final = "role"
Path = tuple[Any, ...]


def roles_of(model: nnx.Module, variables: Mapping[str, tuple[Path, Any]], linen: LinenModules) -> dict[str, Role]:
    """The role of each variable of a model, by name; ConfigError lists roles in metadata that are none.

    `variables` are the paths and the abstract variables, `linen` has seen how the model was made.
    """
    modules = {
        path: node
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.Module) and not isinstance(node, nnx.List | nnx.Dict)
    }
    found, faults = {}, []
    for name, (path, variable) in variables.items():
        depth = next(depth for depth in reversed(range(len(path))) if path[:depth] in modules)
        try:
            found[name] = _role(modules[path[:depth]], path[depth:], variable, linen)
        except ConfigError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise ConfigError("\n".join(sorted(faults)))
    return found


def _role(owner: nnx.Module, path: Path, variable: Any, linen: LinenModules) -> Role:
    """The role of a variable at `path` below the module that has it."""
    shape = tuple(variable.shape)
    text = variable.get_metadata().get(ROLE) if isinstance(variable, nnx.Variable) else None
    if text is not None:
        return stated(text, shape)
    if isinstance(owner, nnx.bridge.ToNNX):
        kernel = linen.kernel(type(owner.to_nnx__module), path, shape)
    else:
        kernel = kernels_of(owner).get(path[-1]) if len(path) == 1 else None
    return named(str(path[-1]), shape) if kernel is None else kernel.role(shape)


def kernels_of(module: nnx.Module) -> Mapping[str, Kernel]:
    """The kernels that a module of Flax has, by the names of its attributes."""
    for cls in type(module).__mro__:
        if cls in _KERNELS:
            return _KERNELS[cls](module)
    return {}


def _linear(module: nnx.Linear) -> dict[str, Kernel]:
    return {"kernel": Kernel((module.in_features, module.out_features), "io")}


def _linear_general(module: nnx.LinearGeneral) -> dict[str, Kernel]:
    # A plain dict by another name, whose methods have no types.
    batch = [module.batch_axis[axis] for axis in module.batch_axis]
    inputs, outputs = module.in_features, module.out_features
    axes = "-" * len(batch) + "i" * len(inputs) + "o" * len(outputs)
    return {"kernel": Kernel((*batch, *inputs, *outputs), axes)}


def _einsum(module: nnx.Einsum) -> dict[str, Kernel]:
    return {"kernel": Kernel(tuple(module.kernel_shape), _einsum_axes(module.einsum_str, len(module.kernel_shape)))}


def _conv(module: nnx.Conv) -> dict[str, Kernel]:
    return {"kernel": Kernel(module.kernel_shape, _conv_axes(len(module.kernel_shape), module.feature_group_count))}


def _conv_transpose(module: nnx.ConvTranspose) -> dict[str, Kernel]:
    axes = _conv_axes(len(module.kernel_shape), transposed=module.transpose_kernel)
    return {"kernel": Kernel(module.kernel_shape, axes)}


def _lora(module: nnx.LoRA) -> dict[str, Kernel]:
    return {"lora_a": Kernel((module.in_features, None), "io"), "lora_b": Kernel((None, module.out_features), "io")}


_KERNELS: Final[dict[type, Callable[[Any], dict[str, Kernel]]]] = {
    nnx.Linear: _linear,
    nnx.LinearGeneral: _linear_general,
    nnx.Einsum: _einsum,
    nnx.Conv: _conv,
    nnx.ConvTranspose: _conv_transpose,
    nnx.LoRA: _lora,
}


class LinenModules:
    """The kernels of all modules of Linen that are initialized while `watching`."""

    def __init__(self) -> None:
        # By their paths in the parameters of the outermost module, with its class.
        self._kernels: dict[Path, list[tuple[type, Kernel]]] = {}
        # The module whose call has all that follow in it: inside of nn.scan a module does not know its parents.
        self._outermost: nn.Module | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        with nn.intercept_methods(self._see):
            yield

    def kernel(self, outermost: type, path: Path, shape: tuple[int, ...]) -> Kernel | None:
        """The kernel at `path`, of which an array of this shape is a stack, with as few axes stacked as possible."""
        found = [
            kernel
            for cls, kernel in self._kernels.get(path, [])
            # nn.scan and the like make a subclass of a module's class, which calls the module itself.
            if issubclass(outermost, cls) and kernel.kept_axes(shape) is not None
        ]
        return max(found, key=lambda kernel: len(kernel.lengths), default=None)

    def _see(self, method: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        module = context.module
        is_outermost, self._outermost = self._outermost is None, self._outermost or module
        try:
            returned = method(*args, **kwargs)
            self._note(type(self._outermost), module)
        finally:
            if is_outermost:
                self._outermost = None
        return returned

    def _note(self, outermost: type, module: nn.Module) -> None:
        kernel = module.variables.get("params", {}).get("kernel") if module.scope is not None else None
        # A module may have a submodule of this name.
        if kernel is not None and not isinstance(kernel, Mapping):
            kernel = _linen_kernel(module, jnp.shape(nn.meta.unbox(kernel)))
            self._kernels.setdefault((*module.path, "kernel"), []).append((outermost, kernel))


def _linen_kernel(module: nn.Module, shape: tuple[int, ...]) -> Kernel:
    """The kernel of a module of Linen, of this shape where nothing is stacked."""
    number = len(shape)
    if isinstance(module, nn.DenseGeneral):
        batch, outputs = (
            len(each) if isinstance(each, tuple | list) else 1 for each in (module.batch_dims, module.features)
        )
        return Kernel(shape, "-" * batch + "i" * (number - batch - outputs) + "o" * outputs)
    if isinstance(module, nn.Einsum):
        return Kernel(shape, _einsum_axes(module.einsum_str, number))
    if isinstance(module, nn.Conv):
        return Kernel(shape, _conv_axes(number, module.feature_group_count))
    if isinstance(module, nn.ConvTranspose):
        return Kernel(shape, _conv_axes(number, transposed=module.transpose_kernel))
    if isinstance(module, nn.ConvLocal):
        return Kernel(shape, "-" * (number - 2) + "io")
    return Kernel(shape, "io" if number == 2 else "")


def _conv_axes(number: int, groups: int = 1, *, transposed: bool = False) -> str:
    """All places of a convolution's window are inputs. One with groups is a matrix for each group of its outputs, which
    are no axis of their own."""
    return "" if groups > 1 else "i" * (number - 2) + ("oi" if transposed else "io")


def _einsum_axes(text: str | None, number: int) -> str:
    """The letters of the axes of the second operand, which is the kernel; none where each call has an equation."""
    if text is None:
        return ""
    operands, result = text.replace(" ", "").split("->")
    inputs, kernel = operands.split(",")
    hidden = "-" * (number - len(kernel.replace("...", "")))
    return "".join(
        hidden if part == "..." else "".join(_einsum_axis(letter, inputs, result) for letter in part)
        for part in (kernel.partition("..."))
    )


def _einsum_axis(letter: str, inputs: str, result: str) -> str:
    if letter not in result:
        return "i"
    return "-" if letter in inputs else "o"
