"""The options with which a TPU VM is created, and what may be added to them."""

from __future__ import annotations

import os
import subprocess

import pytest
from beds.tpu import VERSION, TpuBed
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import OutletError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.tpu import gcloud
from dispatcher.outlets.tpu.creation import argument_problems, dictionary, of_queued, of_vm


def host(**settings: object) -> TpuHost:
    base = {"name": "pod", "cluster": "pod", "zone": "z", "accelerator_type": "v4-32", "version": "v"}
    return TpuHost(**{**base, "dead_after_s": None, **settings})


def test_reservations_disks_and_tags() -> None:
    made = host(
        reserved=True, reservation="projects/p/reservations/r", data_disk=("source=a,mode=read-only", "source=b"),
        tags=("x", "y"),
    )  # fmt: skip
    wanted = [
        "--reserved", "--reservation=projects/p/reservations/r", "--data-disk=source=a,mode=read-only",
        "--data-disk=source=b", "--tags=x,y",
    ]  # fmt: skip
    for words in (of_vm(made, {}), of_queued(made, {})):
        assert [word for word in words if word in wanted] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("reservation", [None, "projects/lab-project/locations/us-central2-b/reservations/r"])
def test_google_gets_them(tpu: TpuBed, reservation: str | None) -> None:
    made = host(
        zone=tpu.zone, accelerator_type="v4-8", version=VERSION, reserved=reservation is None, reservation=reservation,
        data_disk=("source=projects/lab-project/zones/us-central2-b/disks/d,mode=read-only",), tags=("x", "y"),
        create_args=("--description", "it's; $(mine)", "--shielded-secure-boot"),
    )  # fmt: skip
    for command in (gcloud.create(made, "0" * 12), gcloud.create_queued(made, "1" * 12)):
        env = {**os.environ, **tpu.env}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        # The request is refused for the VM that is there, after its body was read.
        assert done.returncode == 0 or "ALREADY_EXISTS" in done.stderr, done.stderr
    (created,), (queued,) = tpu.requests("nodes.create"), tpu.requests("queuedResources.create")
    (spec,) = queued.body["tpu"]["nodeSpec"]
    for node in (created.body, spec["node"]):
        (disk,) = node["dataDisks"]
        assert disk == {"mode": "READ_ONLY", "sourceDisk": "projects/lab-project/zones/us-central2-b/disks/d"}
        assert node["tags"] == ["x", "y"]
        assert node["description"] == "it's; $(mine)"
    if reservation is None:
        assert created.body["schedulingConfig"]["reserved"] is True
    else:
        assert created.body["schedulingConfig"]["reservationName"] == queued.body["reservationName"] == reservation


def test_each_command_gets_the_added_options_that_it_has() -> None:
    made = host(create_args=("--description", "it's mine", "--queue-count=2", "--guaranteed", "--no-x=1"))
    assert of_vm(made, {})[-4:] == ["--description", "it's mine", "--queue-count=2", "--no-x=1"]
    assert of_queued(made, {})[-4:] == ["--description", "it's mine", "--guaranteed", "--no-x=1"]


def test_what_is_ours_is_refused_and_all_of_it_is_named() -> None:
    made = host(create_args=("--zone=x", "--acc=v4-8", "--labels", "a=b", "-q", "--no-spot", "--network-config=n"))
    problems = argument_problems(made)
    assert problems == (
        "hosts.pod.create_args: --zone=x contradicts --zone, which is generated: use `zone` of the host; "
        "--acc=v4-8 contradicts --accelerator-type, which is generated: use `accelerator_type` of the host; "
        "--labels contradicts --labels, which is generated; '-q' is no option: write --NAME=VALUE; "
        "--no-spot contradicts --spot, which is generated: use `spot` of the host"
    )
    with pytest.raises(OutletError, match="contradicts --zone"):
        of_vm(made, {})
    assert argument_problems(host(create_args=("--range=10.0.0.0/29",))) == ""
    slices = argument_problems(host(create_args=("--node-count=2", "--node-p", "x")))
    assert slices.count("a host is one TPU VM, and one job over several slices is not supported") == 2


def split(argument: str) -> dict[str, str]:
    """As gcloud reads a dictionary: a separator between carets, then names and values at the first `=`."""
    separator, rest = argument[1:].split("^", 1)
    return dict(pair.split("=", 1) for pair in rest.split(separator))


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="=\0"), min_size=1)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(st.dictionaries(NAMES, VALUES, min_size=1))
def test_values_of_metadata_arrive_as_they_were(values: dict[str, str]) -> None:
    assert split(dictionary(values)) == values


def test_metadata_that_gcloud_cannot_be_given() -> None:
    with pytest.raises(OutletError, match="'a=b' cannot be a name"):
        dictionary({"a=b": "c"})
    with pytest.raises(OutletError, match="every character that could separate"):
        dictionary({"a": "".join(map(chr, range(1, 127)))})
