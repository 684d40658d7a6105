#!/usr/bin/env python3
"""Builds the control plane and the node's programs from Debian's source packages, once per machine (about 4 minutes).

    build.py        makes what `needs.py` names and the cache lacks

The work is done in a folder of the cache that is removed afterwards (2 GB); a program appears in the cache complete or
not at all. Only the machine's own package mirror is asked, and Go builds from what is in the source package.
Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
sys.dont_write_bytecode = True

from beds.needs import CACHE, CONTAINER, CONTROL_PLANE, KUBELET, KUBERNETES  # noqa: E402 - found through the path above

# Our own programs: where their sources are.
OURS = {CONTAINER: "container", KUBELET: "kubelet"}

VERSION = "1.20.2"
# reflect2 as the source package has it crashes with Go 1.18 and later, at any custom resource.
SOURCES = {"kubernetes": f"1.20.5+really{VERSION}-", "golang-github-modern-go-reflect2": "1.0.2-"}
# How many versions of a program of ours the cache holds, for several checkouts.
KEPT = 4
GO = ("/usr/lib/go-1.19/bin/go", "go")
K8S = "k8s.io/kubernetes"
# Without the SDKs of four clouds and Docker's shim, which are 40 % of what would be compiled, and without debug tables.
LESS = ("-tags", "providerless,dockerless", "-gcflags=all=-dwarf=false")
# The same kubelet, which looks more often: in tests nobody wants to wait for its seconds.
PATCHES = os.path.join(HERE, "kubelet", "patches.json")


class BuildError(Exception):
    """What did not work, for people."""


def main() -> None:
    os.makedirs(KUBERNETES, exist_ok=True)
    with only_one():
        try:
            build()
        except BuildError as error:
            sys.exit(str(error))


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Another build that runs at this moment is waited for; what a killed one has left is removed."""
    with open(os.path.join(CACHE, "building"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in glob.glob(os.path.join(CACHE, "work-*")):
            shutil.rmtree(left, ignore_errors=True)
        yield


def build() -> None:
    missing = [path for path in (*CONTROL_PLANE, *OURS) if not os.path.exists(path)]
    began_s = time.monotonic()
    work = tempfile.mkdtemp(prefix="work-", dir=CACHE)
    try:
        source = Source(work)
        if set(missing) - {CONTAINER}:
            source.fetch()
        if set(missing) & set(CONTROL_PLANE):
            source.generate()
        # On one filesystem: a reader sees all of a program or nothing.
        for made, path in source.compile(missing):
            os.rename(made, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if missing:
        names = ", ".join(map(os.path.basename, missing))
        print(f"built {names} in {time.monotonic() - began_s:.0f} s", flush=True)
    for name in ("bed-kubelet", "bed-container"):
        forget_old(name)


def forget_old(name: str) -> None:
    """Keep what the newest checkouts use."""
    found = glob.glob(os.path.join(KUBERNETES, f"{name}-*"))
    for path in sorted(found, key=os.path.getmtime)[:-KEPT]:
        os.unlink(path)


class Source:
    """The source tree in a work folder, as Go's old GOPATH has it."""

    def __init__(self, work: str) -> None:
        self._work = work
        self._tree = os.path.join(work, "go", "src", K8S)
        go = next((found for name in GO if (found := shutil.which(name))), None)
        if go is None:
            raise BuildError("no Go compiler: apt-get install golang-go")
        self._go = go
        self._env = {
            **os.environ,
            "GOPATH": os.path.join(work, "go"),
            "GOCACHE": os.path.join(work, "objects"),
            "GO111MODULE": "off",
            "GOPROXY": "off",
            "GOFLAGS": "",
            "CGO_ENABLED": "0",
        }

    def fetch(self) -> None:
        """Download, unpack and mend the source packages."""
        apt = Apt(os.path.join(self._work, "apt"))
        for package, version in SOURCES.items():
            apt.fetch(package, version)
        os.makedirs(os.path.dirname(self._tree))
        apt.unpack("kubernetes", self._tree)
        newer = os.path.join(self._work, "reflect2")
        apt.unpack("golang-github-modern-go-reflect2", newer)
        vendored = os.path.join(self._tree, "vendor/github.com/modern-go/reflect2")
        shutil.rmtree(vendored)
        shutil.copytree(newer, vendored, ignore=shutil.ignore_patterns("*_test.go", "debian", "tests"))
        with open(PATCHES, encoding="utf-8") as file:
            patches = json.load(file)
        for path, changes in patches.items():
            replace(os.path.join(self._tree, path), changes)

    def generate(self) -> None:
        """The table of all types' OpenAPI definitions, which the source package does not have."""
        generator = os.path.join(self._work, "openapi-gen")
        self._run(self._go, "build", "-o", generator, f"{K8S}/vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        output = os.path.join(self._work, "generated")
        package = f"{K8S}/pkg/generated/openapi"
        self._run(
            generator, "--go-header-file", "hack/boilerplate/boilerplate.generatego.txt", "-O", "zz_generated.openapi",
            "--input-dirs", ",".join(self._described()), "--output-package", package, "--output-base", output,
            "-r", os.devnull,
        )  # fmt: skip
        shutil.copy(f"{output}/{package}/zz_generated.openapi.go", f"{self._tree}/pkg/generated/openapi/")

    def _described(self) -> list[str]:
        """The packages whose types are in that table."""
        found = set()
        for part, prefix in (("staging/src/k8s.io", f"{K8S}/vendor/k8s.io"), ("pkg", f"{K8S}/pkg")):
            root = os.path.join(self._tree, part)
            for folder, _, files in os.walk(root):
                if re.search(r"sample-|code-generator|/test", folder):
                    continue
                if any(name.endswith(".go") and asks_for_openapi(os.path.join(folder, name)) for name in files):
                    found.add(prefix + folder.removeprefix(root))
        return sorted(found)

    def compile(self, paths: list[str]) -> Iterator[tuple[str, str]]:
        """These programs, with one call: what they share is compiled once, and as much at a time as there are cores.

        Yields where each is in the work folder, and its path.
        """
        made = os.path.join(self._work, "made")
        packages = []
        for path in paths:
            name = os.path.basename(path)
            if path in OURS:
                shutil.copytree(os.path.join(HERE, OURS[path]), os.path.join(self._tree, "cmd", name))
            packages.append(f"{K8S}/cmd/{name}")
        versions = [f"{K8S}/vendor/k8s.io/{package}/version" for package in ("component-base", "client-go/pkg")]
        major, minor, _ = VERSION.split(".")
        words = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
        flags = [f"-X {package}.{word}={value}" for package in versions for word, value in words.items()]
        if packages:
            self._run(self._go, "build", *LESS, "-ldflags", " ".join(["-s -w", *flags]), "-o", f"{made}/", *packages)
        for path in paths:
            yield os.path.join(made, os.path.basename(path)), path

    def _run(self, *argv: str, cwd: str | None = None) -> None:
        run(*argv, cwd=cwd or self._tree, env=self._env)


class Apt:
    """The machine's own mirror, asked for sources, with package lists of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        for name in ("lists/partial", "cache/archives/partial", "fetched"):
            os.makedirs(os.path.join(folder, name))
        for index, text in enumerate(debian_sources()):
            kind = "sources" if "Types:" in text else "list"
            with open(f"{folder}/{index}.{kind}", "w", encoding="utf-8") as file:
                file.write(as_sources(text))
        self._options = [
            "-qq", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={folder}",
            "-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache",
            "-o", "APT::Sandbox::User=root",
        ]  # fmt: skip
        run("apt-get", *self._options, "update", cwd=folder)

    def fetch(self, package: str, version: str) -> None:
        fetched = os.path.join(self._folder, "fetched")
        run("apt-get", *self._options, "source", "--download-only", package, cwd=fetched)
        if not glob.glob(f"{fetched}/{package}_{version}*.dsc"):
            found = ", ".join(os.path.basename(path) for path in glob.glob(f"{fetched}/{package}_*.dsc"))
            raise BuildError(f"the mirror has {found} where {package} {version}* is wanted (Debian 12)")

    def unpack(self, package: str, to: str) -> None:
        (description,) = glob.glob(f"{self._folder}/fetched/{package}_*.dsc")
        run("dpkg-source", "-x", description, to, cwd=self._folder)


def debian_sources() -> list[str]:
    """The texts that say where this machine has Debian's packages from, and nobody else's."""
    paths = ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]
    texts = []
    for path in filter(os.path.isfile, paths):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if "bookworm" in text and re.search(r"\bmain\b", text) and "/debian" in text:
            texts.append(text)
    if not texts:
        raise BuildError("no package source of Debian 12 (bookworm) in /etc/apt")
    return texts


def as_sources(text: str) -> str:
    text = re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE)
    return re.sub(r"^deb\s", "deb-src ", text, flags=re.MULTILINE)


def asks_for_openapi(path: str) -> bool:
    with open(path, encoding="utf-8") as file:
        return "+k8s:openapi-gen=true" in file.read()


def replace(path: str, changes: dict[str, str]) -> None:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for old, new in changes.items():
        if text.count(old) != 1:
            raise BuildError(f"{path}: {old!r} stands there {text.count(old)} times, not once")
        text = text.replace(old, new)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def run(*argv: str, cwd: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise BuildError(f"{' '.join(argv[:3])} ...: exit status {done.returncode}:\n{said}")


if __name__ == "__main__":
    main()
