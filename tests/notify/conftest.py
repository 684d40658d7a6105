"""What tests of notices may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.workspace import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)
