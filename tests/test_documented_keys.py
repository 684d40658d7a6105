"""What the pages say can be written and set is accepted where a user writes it: in files that the real reader reads.

Tests of a key's effect often begin below the reader. These walk the tables and the sentences of the pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import pytest
from pages import first_column

from dispatcher import contract
from dispatcher.base import variables
from dispatcher.base.schema.reading import fields
from dispatcher.base.yaml_text import dump, load
from dispatcher.cli import main
from dispatcher.config import Config, Method, load_config
from dispatcher.errors import DispatcherError
from dispatcher.hosts.read import TYPES
from dispatcher.hosts.types import Cluster
from dispatcher.matrix.entry import KEYS, Entry
from dispatcher.matrix.manifest import load_manifest
from dispatcher.workspace import Layout

DOCS: Final = Path(__file__).parent.parent / "docs"
TEXTS: Final = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}

# A value of each key that the tables of configuration.md and entries.md have, none of them the default.
SETTINGS: Final[Mapping[str, Any]] = {
    "matrix": "jobs.json",
    "status_file": "matrix/status.json",
    "script_lock": "script.lock",
    "lock": "lockf",
    "poll_interval": "7s",
    "heartbeat": "3s",
    "lost_after": "20m",
    "kill_grace": "80s",
    "max_requeues": 3,
    "stall_after": "45m",
    "gpu_idle": {"after": "10m", "stop": True},
    "code": "dirty",
    "provenance": False,
    "provenance_env": ["XLA_FLAGS", "MY_*"],
    "notify": {"targets": {"ops": {"command": ["mail", "ops"]}}},
    "limits": [{"per": "user", "max_running": 4}],
    "methods": {"fft": {"gpus": 2}},
    "hosts": {"ws1": {"ssh": "ws1"}},
    "clusters": {"hpc": {"root": "/data"}},
    "priority": ["ws1"],
    "gres_mapping": {"h100": ["h100", "nvidia_h100"]},
}
METHOD: Final[Mapping[str, Any]] = {
    "template": "templates/t.py",
    "command": "python {script}",
    "python": "envs/a",
    "setup": "source x",
    "env": {"A": "1"},
    "env_file": "~/secrets",
    "time_limit": "8h",
    "gpus": 2,
    "gpu_memory": "20G",
    "resources": {"chip": "h100"},
    "retries": 2,
    "retry_on": ["out of memory"],
    "stall_after": "45m",
    "gpu_idle": {"stop": True},
    "backoff": "31s",
    "on_lost": "fail",
    "on_preempted": "fail",
    "on_move": "restart",
    "max_running": 3,
    "max_fails": 4,
    "pause_after": False,
    "pack": 8,
    "queue_limit": "6h",
    "snapshot": True,
    "result": "out/summary.json",
    "metrics": {"path": "out/log.jsonl", "step": "epoch"},
    "container": {"runtime": "apptainer", "image": "a.sif"},
    "slurm": {"partition": "big", "sbatch_args": ["--exclusive"]},
    "pbs": {"queue": "big"},
}
ENTRY: Final[Mapping[str, Any]] = {
    **{key: METHOD[key] for key in METHOD.keys() & KEYS.keys()},
    "needs": ["b"],
    "priority": 3,
    "cwd": "src",
    "outlet": "ws1",
    "user": "ada",
    "job": "a/b",
    "config": {"lr": 1},
    "import": "jobs/a.py",
}


OF_HOSTS: Final = {key for host in TYPES.values() for key in fields(host)}


def documented(page: str, after: str) -> set[str]:
    return first_column(TEXTS[DOCS / page], after)


def configured(root: Path, text: str) -> Config:
    (root / "dispatcher.yaml").write_text(text)
    return load_config(Layout(root))


def test_each_setting_of_the_table_is_read(tmp_path: Path) -> None:
    assert documented("configuration.md", "## Settings\n") == SETTINGS.keys()
    (tmp_path / "matrix").mkdir()
    for key, value in SETTINGS.items():
        beside = {} if key == "hosts" else {"hosts": SETTINGS["hosts"]}
        plain = configured(tmp_path, dump(beside))
        assert configured(tmp_path, dump({**beside, key: value})) != plain, f"{key} changes nothing"
    everything = configured(tmp_path, dump(SETTINGS))
    assert everything.layout.status_file == tmp_path / "matrix/status.json"
    assert everything.hosts.clusters.keys() == {"hpc"} and everything.hosts.priority == ("ws1",)
    assert everything.hosts.gres_types("h100") == ("h100", "nvidia_h100")


def test_each_key_of_a_method_is_read(tmp_path: Path) -> None:
    assert documented("configuration.md", "## Methods\n") == METHOD.keys()
    plain = configured(tmp_path, "").method("fft")
    for key, value in METHOD.items():
        found = configured(tmp_path, dump({"methods": {"fft": {key: value}}})).method("fft")
        changed = [name for name in Method.__struct_fields__ if getattr(found, name) != getattr(plain, name)]
        assert len(changed) == 1, f"{key} changes {changed}"


def test_each_key_of_an_entry_is_read(tmp_path: Path) -> None:
    assert documented("entries.md", "All other keys are parameters of the training script.\n") == ENTRY.keys()
    for key, value in ENTRY.items():
        beside = {"job": "a/b"} if key in ("config", "import") else {}
        entries = [{"job_id": "a", "method": "m", key: value, **beside}, {"job_id": "b", "method": "m"}]
        (tmp_path / "matrix.json").write_text(json.dumps(entries))
        found = load_manifest(tmp_path / "matrix.json").entries["a"]
        plain = Entry(job_id="a", method="m", job=found.job if beside else None)
        changed = [name for name in Entry.__struct_fields__ if getattr(found, name) != getattr(plain, name)]
        assert changed and "params" not in changed, f"{key} changes {changed}"


def test_what_a_sentence_says_of_a_key_can_be_written(tmp_path: Path) -> None:
    """`key: value` in the text of a page, where that key belongs; `...` and words in capitals stand for something."""
    (tmp_path / "matrix").mkdir()
    shown = 0
    for page, text in TEXTS.items():
        prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for span in re.findall(r"`(\w+: [^`\n]+)`", prose):
            key, _, value = span.partition(": ")
            documents = list(places(key, value.replace("...", "lab").replace("BUCKET", "bucket")))
            if documents and not re.fullmatch(r"[A-Z]+|\{memory\}", value):
                found = [faults(tmp_path, document) for document in documents]
                assert not all(found), f"{page.name}: {span}: {found}"
                shown += 1
    assert shown > 25


def places(key: str, text: str) -> Iterator[dict[str, Any]]:
    """Each dispatcher.yaml in which a key has its place: of the workspace, a method, a cluster or a kind of host."""
    if key not in {*SETTINGS, *METHOD, *fields(Cluster), *OF_HOSTS}:
        return
    value = load(text)
    if key in SETTINGS:
        yield {key: value}
    if key in METHOD:
        yield {"methods": {"m": {key: value}}}
    if key in fields(Cluster):
        yield {"clusters": {"a": {key: value}}}
    needed = {
        "plain": {"ssh": "a"},
        "tpu": {"zone": "z", "accelerator_type": "v4-8"},
        "volcano": {"image": "i", "pvc_name": "p", "pvc_mount_path": "/v"},
    }
    for kind, host in TYPES.items():
        if key in fields(host):
            yield {"hosts": {"h": {"type": kind, **needed.get(kind, {}), key: value}}}


def faults(root: Path, document: Mapping[str, Any]) -> str:
    """What is wrong with a dispatcher.yaml; empty when nothing is."""
    try:
        configured(root, dump(document))
    except DispatcherError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("url", ["gs://bucket/lab", "s3://bucket", "az://box/lab/"])
def test_checkpoints_of_a_cluster_are_in_an_object_store(tmp_path: Path, url: str) -> None:
    hosts = configured(tmp_path, dump({"clusters": {"a": {"checkpoints": url}}})).hosts
    assert hosts.clusters["a"].checkpoints == url.rstrip("/")
    for key in set(fields(Cluster)) - {"checkpoints", "mount", "uv_installer", "juicefs_installer"}:
        assert faults(tmp_path, {"clusters": {"a": {key: url}}}), f"{key} is a directory"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://a/b", "expected a directory or one of s3://bucket/..., gs://bucket/..., az://bucket/..."),
        ("s3://", "expected a directory or one of s3://bucket/..."),
        ("s3://AKIA1:hush@bucket/x", "no credentials in a URL"),
        ("s3://bucket/x?secret=hush", "no credentials in a URL"),
        ("gs://bucket/$USER", "without blanks and variables"),
        ("runs", "or the URL of an object store"),
    ],
)
def test_what_is_no_place_for_checkpoints(tmp_path: Path, url: str, why: str) -> None:
    found = faults(tmp_path, {"clusters": {"a": {"checkpoints": url}}})
    assert "clusters.a.checkpoints" in found and why in found
    assert "hush" not in found


# Those that people set for the dispatcher itself; options of pods and commands are known to click.
OF_DISPATCHERS: Final = {
    *("DISPATCHER_ROOT", "DISPATCHER_HOST", "DISPATCHER_SSH_CONFIG", "DISPATCHER_SSH_SOCKET", "DISPATCHER_COMPLETE"),
}
# That of a login, which decides where its logs are.
OF_LOGINS: Final = {"DISPATCHER_LOG_OVERRIDE"}


def test_each_variable_of_the_pages_is_one_that_the_code_knows(tmp_path: Path) -> None:
    """What people may set for jobs is accepted in `env` at every level; what the dispatcher sets is refused there."""
    told = {name for text in TEXTS.values() for name in re.findall(r"\bDISPATCHER_[A-Z0-9_]*[A-Z0-9]\b", text)}
    assert told >= variables.SETTABLE
    context = click.Context(main.cli)
    commands = [main.cli, *(main.cli.get_command(context, name) for name in main.cli.list_commands(context))]
    options = {
        one.envvar if isinstance(one.envvar, str) else f"DISPATCHER_{(one.name or '').upper()}"
        for command in commands
        if command is not None
        for one in command.params
        if one.envvar or command is main.cli
    }
    package = Path(contract.__file__).parent
    sources = "".join(path.read_text() for path in package.rglob("*") if path.suffix in (".py", ".j2"))
    for name in told - OF_DISPATCHERS - OF_LOGINS - options:
        assert name in sources or name.endswith("_OVERRIDE"), f"{name} is read by nothing"
        for document in places("env", f"{{{name}: '1'}}"):
            assert bool(faults(tmp_path, document)) is (name not in variables.SETTABLE), document


def test_a_variable_of_an_entry_reaches_the_reader(tmp_path: Path) -> None:
    store = {"DISPATCHER_CHECKPOINTS_OVERRIDE": "s3://bucket/lab"}
    (tmp_path / "m.json").write_text(json.dumps([{"job_id": "a", "method": "m", "env": store}]))
    assert load_manifest(tmp_path / "m.json").entries["a"].env == store
