"""Real git repositories for tests, and what is in archives made of them."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

_IDENTITY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Repository:
    """A git repository at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str, date: str = "2024-05-06T07:08:09Z") -> str:
        environment = {**os.environ, **_IDENTITY, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        ran = subprocess.run(["git", *words], cwd=self.root, env=environment, capture_output=True, check=False)
        assert ran.returncode == 0, f"git {' '.join(words)}: {ran.stderr.decode()}"
        return ran.stdout.decode("utf-8", "surrogateescape").strip()

    def write(self, name: str, content: str | bytes = "", mode: int = 0o644) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def commit(self, date: str = "2024-05-06T07:08:09Z", message: str = "change") -> str:
        """Commit all files; the commit's id."""
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message, date=date)
        return self.git("rev-parse", "HEAD")


def unpacked(archive: str | Path, into: Path) -> dict[str, str]:
    """The files of an archive, extracted by the system's tar, by path: the content, or `-> TARGET` of a link."""
    into.mkdir()
    ran = subprocess.run(["tar", "-xf", archive, "-C", into], capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    found = {}
    for directory, _, names in os.walk(into):
        for name in names:
            path = os.path.join(directory, name)
            shown = os.path.relpath(path, into)
            if os.path.islink(path):
                found[shown] = f"-> {os.readlink(path)}"
            else:
                with open(path, "rb") as file:
                    found[shown] = file.read().decode()
    return found


def members(archive: str | Path) -> list[tarfile.TarInfo]:
    with tarfile.open(archive, encoding="utf-8", errors="surrogateescape") as tar:
        return tar.getmembers()
