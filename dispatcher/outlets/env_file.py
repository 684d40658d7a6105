"""`env_file`: a file with secrets where a job runs, of which only the path is ever written down.

The wrapper, or node.sh where there is one, reads it there (templates/env_file.sh.j2) and checks that only its owner,
the user of the job, may read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dispatcher.base.devices import DECIDED
from dispatcher.config import Config
from dispatcher.errors import TemplateError
from dispatcher.hosts.types import TpuHost, VolcanoHost
from dispatcher.matrix.entry import Entry

_NAME: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_SHELL: Final = frozenset({b"BASHOPTS", b"BASH_VERSINFO", b"EUID", b"PPID", b"SHELLOPTS", b"UID"})
# The machines are new for each attempt, so no user's file is there.
_INSTEAD: Final[Mapping[str, str]] = {
    VolcanoHost.type: "use a Secret of Kubernetes, named with envFrom in templates/volcano.yaml",
    TpuHost.type: "let the method's setup fetch them, from Secret Manager for example",
}


def env_files(config: Config, entry: Entry) -> list[str]:
    """The files that an attempt of the entry reads, in this order: its method's, its own."""
    method = config.method(entry.method)
    return [path for path in (method.env_file, entry.env_file) if path is not None]


def fault_in(data: bytes) -> str:
    """What is wrong with the content of such a file, in the words of templates/env_file.sh.j2; empty if nothing is."""
    # The shell leaves out null bytes. No message has anything of a line, which may be a secret.
    for number, line in enumerate(data.replace(b"\0", b"").split(b"\n"), 1):
        text = line.removesuffix(b"\r").lstrip(b" \t")
        if not text or text.startswith(b"#"):
            continue
        name, equals, _ = text.removeprefix(b"export ").partition(b"=")
        if not equals or not _NAME.fullmatch(name):
            return f"line {number} is not NAME=VALUE"
        if name.startswith((b"DISPATCHER_", b"dispatcher_")):
            return f"line {number}: names with DISPATCHER_ are set by the dispatcher itself"
        if name.decode() in DECIDED:
            return f"line {number}: which GPUs a job sees is decided by its slot and its env"
        if name in _OF_THE_SHELL:
            return f"line {number}: the shell keeps this variable for itself"
    return ""


def refuse_env_file(config: Config, entry: Entry, outlet: str) -> None:
    """TemplateError where the attempt has such a file, and goes to a host that has none."""
    host = config.hosts.hosts.get(outlet)
    instead = _INSTEAD.get(host.type, "") if host is not None else ""
    if instead and env_files(config, entry):
        raise TemplateError(f"{entry.job_id}: env_file: {outlet} has no files of a user: {instead}")
