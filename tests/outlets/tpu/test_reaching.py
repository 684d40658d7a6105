"""What runs on a worker, and what gcloud's failures mean for people."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.exchange import Exchange
from dispatcher.outlets.remote.operations import Has, Hello
from dispatcher.outlets.tpu import reaching

HOST = TpuHost(
    name="pod", cluster="pod", zone="us-central2-b", accelerator_type="v4-16", project="lab", internal_ip=True
)


def on_a_worker(command: str, home: Path) -> subprocess.CompletedProcess[bytes]:
    """As sshd runs it, after gcloud has split it at its spaces and ssh has joined it."""
    words = ["bash", "-c", " ".join(command.split(" "))]
    environment = {**os.environ, "HOME": os.fspath(home)}
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/", env=environment)


def test_the_words_name_the_vm_and_where_it_is() -> None:
    words = reaching.ssh_words(HOST, "all", "true", "/tmp/d")
    assert words[:5] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh"]
    named = {"pod", "--zone=us-central2-b", "--project=lab", "--internal-ip", "--quiet", "--worker=all"}
    assert named <= set(words)
    assert {"--command=true", "--output-directory=/tmp/d/None", "--ssh-flag=-oBatchMode=yes"} <= set(words)
    words = reaching.scp_words(HOST, "0", ["/tmp/a b"])
    assert words[words.index("/tmp/a b") + 1] == "pod:"
    assert "--scp-flag=-oBatchMode=yes" in words


def test_an_agent_is_given_its_request_in_the_command(tmp_path: Path) -> None:
    exchange = Exchange([Hello(directories={"base": "~"}), Has(paths=["/it's; $(x)"])], 30)
    done = on_a_worker(reaching.command_with(exchange.request), tmp_path)
    answers = exchange.answers(done.stdout)
    assert answers is not None, done.stderr
    assert (answers[0].directories, answers[1].sizes) == ({"base": os.fspath(tmp_path)}, [None])


def test_files_of_a_request_are_joined_in_order_and_removed(tmp_path: Path) -> None:
    exchange = Exchange([Hello()], 30)
    kept, old = tmp_path / ".dispatcher-other.00", tmp_path / ".dispatcher-old.00"
    kept.touch()
    old.touch()
    os.utime(old, (0, 0))
    # More than nine, cut anywhere.
    names = reaching.file_names("n", 12)
    size = len(exchange.request) // 11
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(exchange.request[number * size : (number + 1) * size])
    done = on_a_worker(reaching.command_for_files("n"), tmp_path)
    assert exchange.answers(done.stdout) is not None, done.stderr
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == [kept]


def test_a_request_that_did_not_arrive_fails_in_words(tmp_path: Path) -> None:
    done = on_a_worker(reaching.command_for_files("n"), tmp_path)
    assert done.returncode not in (0, 255)
    assert b"No such file" in done.stderr


def test_a_command_does_not_run_twice(tmp_path: Path) -> None:
    """gcloud tries again after a connection that broke off: what was printed would be printed again."""
    command = reaching.command_once("n", ["sh", "-c", 'printf %s "$1"; cat', "sh", "it's; $(x)"])
    first, second = on_a_worker(command, tmp_path), on_a_worker(command, tmp_path)
    assert (first.returncode, first.stdout, first.stderr) == (0, b"it's; $(x)", b"")
    assert (second.returncode, second.stdout) == (75, b"")


def test_gcloud_asks_nothing_and_has_no_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    found = reaching.environment()
    assert "SSH_AUTH_SOCK" not in found
    assert found["CLOUDSDK_CORE_DISABLE_PROMPTS"] == "1"
    assert found["PATH"] == os.environ["PATH"]


def test_the_workers_without_an_answer_are_named_with_their_words() -> None:
    refused = b"ssh: connect to host 10.0.0.3 port 22: Connection refused\r\n" * 3
    why = reaching.explain(
        "SSH: Attempting to connect to worker 0...\n", [b"\nnonce 1\nx", refused, b"dispatcher agent\n"], [1, 2]
    )
    assert why == (
        "worker 1 of 3 gave no answer: ssh: connect to host 10.0.0.3 port 22: Connection refused; "
        "worker 2 of 3 gave no answer: it printed nothing"
    )


def test_addresses_in_a_message_name_workers() -> None:
    addresses = [["10.0.0.2"], ["10.0.0.22", "198.18.0.3"], ["10.0.0.4"]]
    why = "ssh: connect to host 198.18.0.3 port 22: Connection refused; ssh: connect to host 10.0.0.4 port 22: No route"
    assert reaching.named_workers(why, addresses) == "worker 1 of 3, worker 2 of 3"
    assert reaching.named_workers("scp: no space left", addresses) == ""


def test_what_gcloud_says_counts_when_it_did_not_come_to_the_workers() -> None:
    err = "Using ssh batch size of 1.\nERROR: (gcloud.compute.tpus.tpu-vm.ssh) NOT_FOUND: Resource 'x' was not found\n"
    assert reaching.explain(err, [], []) == "NOT_FOUND: Resource 'x' was not found"
    assert reaching.explain("", [], []) == "gcloud printed no message"


def test_commands_survive_gcloud_s_own_splitting() -> None:
    command = reaching.command_once("n", ["printf", "a  b"])
    assert shlex.split(" ".join(command.split(" ")))[:3] == ["exec", "sh", "-c"]
