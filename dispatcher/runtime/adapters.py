"""Low-rank adapters: LoRA, Hu et al. 2021 (arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Container

from flax import nnx

from dispatcher.runtime.parameters import Arrays


def add_adapters(module: nnx.Module, rank: int, *, rngs: nnx.Rngs) -> None:
    """Wrap every linear layer of `module`, in place: y = base(x) + x A B, where A has `rank` columns.

    B starts at zero, so at first the wrapped model computes what the base model does. The adapters are `nnx.LoRAParam`:
    with `TRAINABLE = nnx.LoRAParam` a trainer updates only them.
    """
    _wrap_children(module, rank, rngs)


def adapted(arrays: Arrays, names: Container[str]) -> Arrays:
    """The `arrays` of a base model, renamed as in the model with adapters, whose variables are `names`."""
    wrapped = {name: "/base_module/".join(name.rsplit("/", 1)) for name in arrays}
    return {wrapped[name] if wrapped[name] in names else name: array for name, array in arrays.items()}


def _wrap_children(module: nnx.Module, rank: int, rngs: nnx.Rngs) -> None:
    for name, child in list(nnx.iter_children(module)):
        if isinstance(child, nnx.Linear):
            adapter = nnx.LoRA(child.in_features, rank, child.out_features, base_module=child, rngs=rngs)
            setattr(module, str(name), adapter)
        elif isinstance(child, nnx.Module):
            _wrap_children(child, rank, rngs)
