from __future__ import annotations

from jax_on_cpu import compilation_cache, cpu_for_children

__all__ = ["compilation_cache", "cpu_for_children"]
