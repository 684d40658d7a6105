"""`dispatcher outlets create|delete`: what is refused before anything is asked of Google."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet import fleet_at

CONFIG = """\
hosts:
  ws1: {type: plain, ssh: ws1}
  pod: {type: tpu, zone: z, project: lab, accelerator_type: v4-8, version: v}
  Pod: {type: tpu, zone: z, accelerator_type: v4-8, version: v}
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("create", "ws1", "--yes"), "ws1 is a host of type plain; only hosts of type tpu are created and deleted"),
        (("delete", "ws1", "--yes"), "ws1 is a host of type plain"),
        (("create", "pood", "--yes"), "pood: no such host is configured (did you mean 'pod'?)"),
        (("create", "Pod", "--yes"), "hosts.Pod: a TPU VM has the host's name"),
        (
            ("create", "pod"),
            "Create pod (v4-8, on demand, z of lab)? It costs money. There is no terminal to ask on: add --yes",
        ),
        (("create", "pod", "--tpu-spot", "--queue"), "Create pod (v4-8, spot, z of lab)? It costs money."),
        (("create", "pod", "--volcano-image", "i"), "--volcano-image"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    with fleet_at(tmp_path / "a'; echo foo") as fleet:
        fleet.write_config(CONFIG)
        done = fleet.try_("outlets", *words)
        assert done.returncode == 2
        assert message in done.stderr
