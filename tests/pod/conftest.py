"""What the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvml_driver import Driver, built_in


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_in(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(nvml_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """NVIDIA's driver as this process and those that it starts see it."""
    made = Driver(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_folder))
    monkeypatch.setenv("FAKE_NVML", str(made.file))
    monkeypatch.setenv("FAKE_NVML_LOG", str(made.log))
    return made
