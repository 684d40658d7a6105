"""Attempts that were submitted to another namespace than the configuration says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from beds.volcano import VolcanoBed
from fleet import Fleet, shell, wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 240.0
GATED = 'echo begun >"$DISPATCHER_ATTEMPT_DIR/begun"; until [ -e "$DISPATCHER_ATTEMPT_DIR/go" ]; do sleep 0.1; done'


@pytest.fixture
def other(volcano: VolcanoBed) -> Iterator[tuple[str, Path]]:
    """A second namespace with a volume of its own."""
    first = volcano.namespace
    name = f"{first}-team"
    volcano.enter_namespace(name)
    try:
        volume = Path(volcano.make_volume("data"))
        volcano.enter_namespace(first)
        yield name, volume
    finally:
        volcano.enter_namespace(name)
        volcano.heal()
        volcano.enter_namespace(first)


def test_a_dispatcher_without_the_option_finds_them(fleet: Fleet, volcano: VolcanoBed, other: tuple[str, Path]) -> None:
    own = Path(volcano.make_volume("data"))
    namespace, volume = other
    words = f"namespace: {volcano.namespace}, kubeconfig: '{volcano.kubeconfig}', image: jax"
    fleet.write_config(
        f"code: none\nhosts:\n  k8s: {{type: volcano, pvc_name: data, pvc_mount_path: /data, {words}}}\n"
    )
    fleet.write_manifest([shell("a", GATED, gpus=0)])
    first = fleet.start("pod", "--slots", "0", "--outlet", "k8s:1", "--volcano-namespace", namespace, poll="2")
    (begun,) = wait_until(lambda: list(volume.glob("**/begun")), "the attempt has begun", PATIENCE_S)
    fleet.wait_for("a", "running", timeout_s=PATIENCE_S)
    first.kill()
    submission = json.loads((fleet.attempt("a").directory / "submission.json").read_text())
    assert (submission["outlet"], submission["location"]["parts"]["namespace"]) == ("k8s", namespace)

    # Under the same name, so that it would adopt what is its own.
    again = fleet.start("pod", "--slots", "0", "--outlet", "k8s:1", "--until-empty", poll="2").ready()
    begun.with_name("go").touch()
    wait_until(lambda: not again.is_running(), "the second dispatcher has ended", PATIENCE_S)
    record = fleet.record("a")
    assert (record.state, record.attempt, record.exit_code) == ("done", 1, 0), again.said
    assert not list(own.glob("**/begun"))
