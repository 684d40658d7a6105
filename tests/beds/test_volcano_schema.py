"""Manifests are compared with Volcano's real resource definitions, without a cluster."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from .volcano_jobs import job, on, shell
from .volcano_schema import RELEASES, check, definitions, for_server

COMPLETE = job(
    "a", *shell("exit 0"), replicas=2, gpus=1, queue="default", minAvailable=2, schedulerName="volcano",
    plugins={"env": [], "svc": ["--disable-network-policy=true"], "ssh": []}, policies=[on("PodFailed", "RestartJob")],
    volumes=[{"mountPath": "/data", "volumeClaimName": "data"}], maxRetry=3, ttlSecondsAfterFinished=60,
    priorityClassName="high",
)  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
def test_a_complete_job_fits(release: str) -> None:
    check(COMPLETE, release)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (["spec", "minAvalable"], 1, "spec"),
        (["spec", "minAvailable"], "1", "spec.minAvailable"),
        (["spec", "tasks", 0, "template", "spec", "nodeSelectr"], {}, "spec.tasks.0.template.spec"),
        (["spec", "tasks", 0, "template", "metadata", "label"], {}, "spec.tasks.0.template.metadata"),
        (["spec", "tasks", 0, "template", "spec", "containers", 0, "env"], {"A": "1"}, "containers.0.env"),
        (["spec", "plugins", "svc"], "", "spec.plugins.svc"),
        (["status", "state"], "Running", "status.state"),
        (["spc"], {}, "manifest"),
    ],
)
def test_what_does_not_fit_is_named(release: str, path: list[Any], value: object, where: str) -> None:
    wrong: Any = copy.deepcopy(COMPLETE)
    part = wrong
    for step in path[:-1]:
        part = part.setdefault(step, {}) if isinstance(part, dict) else part[step]
    part[path[-1]] = value
    with pytest.raises(ValueError, match=f"does not fit Volcano {release}: .*{where}"):
        check(wrong, release)


def test_amounts_may_be_numbers() -> None:
    made: Any = copy.deepcopy(COMPLETE)
    made["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = 2
    for release in RELEASES:
        check(made, release)


def test_only_later_releases_look_at_policies() -> None:
    made = {**COMPLETE, "spec": {**COMPLETE["spec"], "policies": [on("NoSuchEvent", "RestartJob")]}}
    check(made, "v1.5.1")
    with pytest.raises(ValueError, match="NoSuchEvent"):
        check(made, "master")


def test_a_kind_that_is_not_volcanos() -> None:
    with pytest.raises(ValueError, match="no batch/v1 Job"):
        check({**COMPLETE, "apiVersion": "batch/v1"}, "master")


def test_definitions_for_an_old_server_have_no_empty_defaults() -> None:
    def defaults(part: Any) -> list[object]:
        if isinstance(part, list):
            return [found for each in part for found in defaults(each)]
        if not isinstance(part, dict):
            return []
        own = [part["default"]] if "default" in part else []
        return own + [found for each in part.values() for found in defaults(each)]

    before = [value for each in definitions("master") for value in defaults(each)]
    after = [value for each in definitions("master") for value in defaults(for_server(each))]
    assert "" in before
    assert after == [value for value in before if value != ""]
