"""What every check of one host gets."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.config import Config
from dispatcher.errors import DispatcherError
from dispatcher.workspace import Layout


@dataclass(frozen=True)
class Context:
    """`config` is the error where dispatcher.yaml cannot be used."""

    layout: Layout
    config: Config | DispatcherError
