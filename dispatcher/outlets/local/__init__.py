"""Attempts as processes of this host: GPUs, slots, processes."""

from __future__ import annotations

from typing import Final

NAME: Final = "local"
