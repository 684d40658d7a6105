"""The words of `gcloud compute tpus tpu-vm ssh` and `scp`, and what they mean when they fail. Pure.

What gcloud adds to ssh: it looks the VM up (and refuses one that is not up), puts the user's key into the VM's
metadata, and runs one ssh for each worker. It takes ssh's own status 255 for a key that has not arrived yet, and tries
again up to ten times, five seconds apart; so a worker that is down costs most of a minute, and a command must never end
with 255 itself.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.exchange import BEGUN, agent_command
from dispatcher.outlets.tpu import gcloud

ALL: Final = "all"
# An argument of a program has at most 128 KiB, here and on the worker.
LONGEST_COMMAND: Final = 100_000
_CONNECT_S: Final = 10
_OPTIONS: Final = {
    "BatchMode": "yes",
    "ConnectTimeout": str(_CONNECT_S),
    # A connection on which nothing is heard for 45 s is closed.
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
    # What a user's own configuration may have for logins by hand.
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "RequestTTY": "no",
    "LogLevel": "ERROR",
}
_STEM: Final = ".dispatcher-"
_CLEAN: Final = f"find . -maxdepth 1 -name '{_STEM}*.??' -type f -mtime +0 -exec rm -f {{}} +"
# EX_TEMPFAIL.
_BEGUN_BEFORE: Final = 75
# What gcloud itself says while it tries, and what it says of a command's status.
_CHATTER: Final = re.compile(
    r"(SSH|SCP): Attempting to connect|Using (ssh|scp) batch size|Failed to execute command on multiple workers"
    rf"|Retrying: |#####|WARNING: |Traceback|  |Exception in thread|$|googlecloudsdk\.|{BEGUN}$"
)
_LONGEST_WORDS: Final = 1000


def ssh_words(host: TpuHost, worker: str, command: str, output: str | None = None) -> list[str]:
    """The command that runs a shell command on a worker by its index, or on all.

    `output` is a directory that has one named `None`: run there, it puts what each worker prints, its errors included,
    into `None/INDEX.log`. gcloud (528 and others) prints its own variable in place of the directory that it was given;
    with these names both come to the same.
    """
    words = [*_leading(host, "ssh"), host.name, f"--worker={worker}", f"--command={command}"]
    words += [f"--ssh-flag=-o{name}={value}" for name, value in _OPTIONS.items()]
    return [*words, *([] if output is None else [f"--output-directory={output}/None"])]


def scp_words(host: TpuHost, worker: str, files: Sequence[str]) -> list[str]:
    """The command that copies files of the current directory into the user's home on a worker, or on all.

    Names alone, because gcloud takes a path with a colon for one on another machine. No other directory there surely
    exists, and gcloud tries a copy that fails for most of a minute.
    """
    options = [f"--scp-flag=-o{name}={value}" for name, value in _OPTIONS.items() if name != "RequestTTY"]
    return [*_leading(host, "scp"), *files, f"{host.name}:", f"--worker={worker}", *options]


def environment() -> Mapping[str, str]:
    """What gcloud is started with: it asks nothing, and uses its own key alone.

    It refuses to work on several workers with an ssh agent that has other keys and not this one.
    """
    found = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
    return {**found, "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}


def file_names(nonce: str, count: int) -> list[str]:
    """The names of the files of one request in the home of each worker, in their order."""
    return [f"{_STEM}{nonce}.{number:02}" for number in range(count)]


def command_with(request: bytes) -> str:
    """The shell command that gives an agent this request, in its own words: every user can read those of a program."""
    return _in_sh(f"printf %s {base64.b64encode(request).decode()} | base64 -d | ({agent_command('python3')})")


def command_for_files(nonce: str) -> str:
    """The shell command that gives an agent the files of a request, one after the other, and removes them.

    Those of requests that never came to their command are removed after a day.
    """
    mine = f"{_STEM}{nonce}."
    return _in_sh(f"cd || exit 1; cat {mine}?? | ({agent_command('python3')}); s=$?; rm -f {mine}??; {_CLEAN}; exit $s")


def command_once(nonce: str, words: Sequence[str]) -> str:
    """The shell command that runs these words, but not a second time when gcloud tries again after a broken connection.

    It tells by a file, which is removed after a day.
    """
    return _in_sh(
        f'set -C; (: >"$HOME/{_STEM}{nonce}.00") 2>/dev/null || exit {_BEGUN_BEFORE}; set +C; '
        f"(cd && {_CLEAN}) </dev/null; exec {shlex.join(words)}"
    )


def explain(err: str, logs: Sequence[bytes], missing: Sequence[int]) -> str:
    """Why there is no answer of these workers, for people; `logs` has what each has printed, once it was tried."""
    if not logs:
        return gcloud.message(_without_chatter(err)) or err.strip()[-_LONGEST_WORDS:] or "gcloud printed no message"
    shown = []
    for index in missing:
        text = _without_chatter(logs[index].decode(errors="replace")) or "it printed nothing"
        shown.append(f"worker {index} of {len(logs)} gave no answer: {text[-_LONGEST_WORDS:]}")
    return "; ".join(shown)


def named_workers(text: str, addresses: Sequence[Sequence[str]]) -> str:
    """The workers whose addresses stand in a message; empty for none."""
    words = set(re.findall(r"[0-9a-fA-F.:]+[0-9a-fA-F]", text))
    named = [f"worker {index} of {len(addresses)}" for index, each in enumerate(addresses) if words & set(each)]
    return ", ".join(named)


def _without_chatter(text: str) -> str:
    """What is left of it, each line once: gcloud tries again and again."""
    lines = (line.strip() for line in text.replace("\0", "").splitlines() if not _CHATTER.match(line))
    return "; ".join(dict.fromkeys(line for line in lines if line))


def _leading(host: TpuHost, command: str) -> list[str]:
    internal = ["--internal-ip"] if host.internal_ip else []
    return [gcloud.PROGRAM, "compute", "tpus", "tpu-vm", command, *gcloud.location(host), "--quiet", *internal]


def _in_sh(script: str) -> str:
    """For a login shell, whichever it is."""
    return f"exec sh -c {shlex.quote(script)}"
