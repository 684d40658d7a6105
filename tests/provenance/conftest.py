"""Workspaces with real git repositories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from repositories import Repository

from dispatcher.workspace import Layout


@pytest.fixture(autouse=True)
def own_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of whoever runs the tests are none of the repositories'."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository with one commit, which is a workspace."""
    repository = Repository(tmp_path / "lab")
    repository.write(".gitignore", "/run_state/\n")
    repository.write("train.py", "print(1)\n")
    repository.commit()
    (repository.root / "run_state").mkdir()
    return repository


@pytest.fixture
def layout(repository: Repository) -> Layout:
    return Layout(repository.root)
