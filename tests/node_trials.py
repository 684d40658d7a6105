"""Attempts on a node: node.sh rendered for a small set-up and run in a workspace whose name shells choke on."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from fleet import PATIENCE_S, wait_until

from dispatcher import contract
from dispatcher.outlets.node.script import NodeJob, private_files, render_node
from dispatcher.outlets.node.setup import NodeSetup, code_file
from dispatcher.workspace import Layout

FAKES = Path(__file__).parent / "fakes"
WORK_ID = "0123456789ab"


class Node:
    """A node: its directories, what is configured, and the attempts that run on it.

    `root` and `work` are the names of the workspace and of the work directory. `environment` is that of the scripts;
    `path` are directories that come first on PATH.
    """

    def __init__(self, folder: Path, *, root: str = "a'; echo foo $(touch pwned)", work: str = "work 'dir'") -> None:
        self.folder = folder
        self.root = folder / root
        self.layout = Layout(self.root)
        self.work = folder / work
        self.local = folder / "local"
        for path in (self.root, self.work, self.local):
            path.mkdir()
        self.setup = NodeSetup(
            work_id=WORK_ID, work=os.fspath(self.work), images=f"{folder}/images", local_dir=os.fspath(self.local)
        )
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")}
        # No registry is asked for an image: nobody listens there.
        self.environment["https_proxy"] = "http://127.0.0.1:9"
        self.path: list[Path] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def configure(self, **words: Any) -> None:
        self.setup = msgspec.structs.replace(self.setup, **words)

    def with_fake(self, *names: str) -> None:
        """Put stand-ins first on PATH."""
        self.path += [FAKES / name for name in names]

    def run(self, script: str, **words: Any) -> Run:
        """Start an attempt of a bash script and wait for its end."""
        return self.start(script, **words).ended()

    def written(self, *, number: int = 1, code: bytes | None = None, setup: str = "", **words: Any) -> Run:
        """An attempt that is not started: its directory with node.sh and what that reads."""
        one = Run(self, number)
        one.directory.mkdir(parents=True, exist_ok=True)
        if code is not None:
            digest = hashlib.sha256(code).hexdigest()
            archive = self.folder / "share it's" / f"{digest}.tar"
            archive.parent.mkdir(exist_ok=True)
            if not archive.exists():
                archive.write_bytes(code)
            _put(one.directory / contract.CODE_FILE, code_file(digest, "abc", os.fspath(archive)))
        if setup:
            _put(one.directory / contract.SETUP_FILE, f"{setup}\ndispatcher_setup_is_read=1\n".encode())
        job = NodeJob(
            root=os.fspath(self.root),
            directory=os.fspath(one.directory),
            label=f"job.{number}",
            environment={contract.ATTEMPT_DIR: os.fspath(one.directory), **words.pop("environment", {})},
            uses_gpus=words.pop("uses_gpus", False),
            group_may_write=False,
            has_setup=bool(setup),
            syncs=words.pop("syncs", False),
            watch=words.pop("watch", None),
        )
        assert not words, f"unknown: {words}"
        _put(one.script, render_node(self.layout, self.setup, job).encode())
        for name, content in private_files(self.setup).items():
            _put(one.directory / name, content)
        return one

    def start(self, script: str, **words: Any) -> Run:
        """Start an attempt; `arguments` are its command, else the bash script; `outside` are variables of node.sh."""
        arguments = words.pop("arguments", ["bash", "-c", script])
        outside = words.pop("outside", {})
        one = self.written(**words)
        environment = {**self.environment, contract.ATTEMPT_DIR: os.fspath(one.directory)}
        environment["PATH"] = os.pathsep.join([*map(os.fspath, self.path), self.environment["PATH"]])
        with open(one.log, "ab") as log:
            one.process = subprocess.Popen(
                ["bash", os.fspath(one.script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, **outside},
                start_new_session=True,
            )
        self.started.append(one.process)
        return one

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def leftovers(self) -> list[str]:
        """What is in the work directory and the one for locks, below what attempts share."""
        found = [*self.work.glob("dispatcher-work/*/*"), *self.local.glob("dispatcher-*/*")]
        return sorted(path.name for path in found)


class Run:
    """One attempt on a node."""

    process: subprocess.Popen[bytes]

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.directory = node.layout.attempt("job", number).directory
        self.script = self.directory / contract.NODE_FILE
        self.log = self.directory / contract.LOG_FILE

    def ended(self) -> Run:
        self.process.wait(PATIENCE_S)
        return self

    def says(self, text: str) -> Run:
        wait_until(lambda: text in self.output or self.process.poll() is not None, f"the command says {text!r}")
        assert text in self.output, self.output
        return self

    def tell_group(self, number: int = signal.SIGTERM) -> None:
        os.killpg(self.process.pid, number)

    @property
    def status(self) -> int:
        assert self.process.returncode is not None
        return self.process.returncode

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def has_failed_setup(self) -> bool:
        return (self.directory / "node.failed").exists()

    @property
    def first(self) -> str:
        """What ended the first of its ranks, as the wrapper reads it."""
        path = self.directory / "node.first"
        return path.read_text().strip() if path.exists() else ""


def _put(path: Path, content: bytes) -> None:
    """Another rank of the attempt may be reading the file."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)


def archive_of(files: Mapping[str, str | bytes]) -> bytes:
    """A code archive; names that end with `/` are directories."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name.rstrip("/"))
            data = content.encode() if isinstance(content, str) else content
            info.mode = 0o755
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
