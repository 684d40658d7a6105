"""A workspace that reaches a volume of a Kubernetes bed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from beds.k8s import K8sBed
from outlets.volcano.helpers import Site


@pytest.fixture
def site(k8s: K8sBed, tmp_path: Path) -> Iterator[Site]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    site = Site(k8s, workspace)
    yield site
    site.close()
