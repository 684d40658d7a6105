from __future__ import annotations

from jax_on_cpu import compilation_cache

__all__ = ["compilation_cache"]
