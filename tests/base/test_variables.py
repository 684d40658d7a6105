"""Which variables may be recorded."""

from __future__ import annotations

import pytest

from dispatcher.base.variables import RECORDED_VARIABLES, looks_secret, recorded
from dispatcher.provenance import host_report

SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "NCCL_AUTH", "Github_Token", "MY_APIKEY")


def test_only_names_of_the_allow_list_are_recorded() -> None:
    environment = {"XLA_FLAGS": "--a", "NCCL_DEBUG": "INFO", "XLA_FLAGS_2": "no", "HOME": "/home/ada"}
    assert recorded(environment, ("XLA_FLAGS", "NCCL_*", "ABSENT")) == {"NCCL_DEBUG": "INFO", "XLA_FLAGS": "--a"}
    assert recorded(environment, ()) == {}


@pytest.mark.parametrize("name", SECRETS)
def test_what_looks_like_a_secret_is_never_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_secret(name)
    assert recorded({name: "s3cret"}, (name, f"{name[:4]}*")) == {}
    monkeypatch.setenv(name, "s3cret")
    assert name not in host_report.environment([name, f"{name[:4]}*"], [])


def test_the_default_list_has_no_secret_and_hosts_judge_alike() -> None:
    assert not [name for name in RECORDED_VARIABLES if looks_secret(name)]
    assert all(host_report.SECRET.search(name) for name in SECRETS)
