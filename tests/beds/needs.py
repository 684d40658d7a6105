"""What each bed needs on this machine, in one table: tests skip by it and `scripts/install-beds` installs by it.

Only the standard library is used, because `scripts/install-beds` may run before there is a virtual environment.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field

from .outcomes import CACHE, HERE, Outcome

# Daemons and mkfs are in the administrator's folders, which a test run's PATH may lack.
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"))


@dataclass(frozen=True)
class Needs:
    """Files that must be there, and the Debian 12 package that brings each (a bare name is looked up on PATH)."""

    packages: dict[str, str]
    devices: tuple[str, ...] = ()
    # Whether it runs in namespaces of its own.
    is_root_needed: bool = True
    # Whether it takes seconds to boot: one bed then serves all its tests, which run one after the other.
    is_shared: bool = True
    # Programs that no package brings: `builder`, a script of this folder, makes them once, outside of the tree.
    built: tuple[str, ...] = ()
    to_build: dict[str, str] = field(default_factory=dict)
    builder: str = ""

    def programs(self) -> list[str]:
        """The paths of those that are there."""
        return [path for name in (*self.packages, *self.built) if (path := shutil.which(name, path=SEARCH_PATH))]

    def missing(self) -> dict[str, str]:
        wanted = {**self.packages, **(self.to_build if self.unbuilt() else {})}
        return {name: package for name, package in wanted.items() if not _is_there(name)}

    def unbuilt(self) -> list[str]:
        return [path for path in self.built if not os.path.exists(path)]


KUBERNETES = os.path.join(CACHE, "k8s-1.20.2")


def _built_of(program: str, sources: str) -> str:
    """The path of a program of ours that is compiled; another text has another name."""
    digest = hashlib.sha256()
    for name in sorted(os.listdir(os.path.join(HERE, sources))):
        with open(os.path.join(HERE, sources, name), "rb") as file:
            digest.update(name.encode() + b"\0" + file.read() + b"\0")
    return os.path.join(KUBERNETES, f"{program}-{digest.hexdigest()[:12]}")


CONTROL_PLANE = tuple(
    os.path.join(KUBERNETES, name) for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
)
KUBELET = _built_of("bed-kubelet", "kubernetes/kubelet")
CONTAINER = _built_of("bed-container", "kubernetes/container")
# Compiles what user-mode Linux needs on some processors.
COMPILER = {"gcc": "gcc", "/usr/include/dlfcn.h": "libc6-dev"}
SLURM = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
}
NEEDS = {
    "nfs": Needs(
        {
            "linux.uml": "user-mode-linux",
            "mount.nfs": "nfs-common",
            "rpc.statd": "nfs-common",
            "rpc.nfsd": "nfs-kernel-server",
            "exportfs": "nfs-kernel-server",
            "rpcbind": "rpcbind",
            "ip": "iproute2",
            "mkfs.ext4": "e2fsprogs",
            "modprobe": "kmod",
            **COMPILER,
        },
        ("/dev/net/tun",),
    ),
    "sshfs": Needs(
        {
            "sshfs": "sshfs",
            "sshd": "openssh-server",
            "ssh": "openssh-client",
            "ssh-keygen": "openssh-client",
            "fusermount3": "fuse3",
            "ip": "iproute2",
        },
        ("/dev/fuse",),
    ),
    "gluster": Needs(
        {
            "glusterd": "glusterfs-server",
            "gluster": "glusterfs-client",
            "glusterfs": "glusterfs-client",
            "fusermount3": "fuse3",
            "ip": "iproute2",
        },
        ("/dev/fuse",),
    ),
    "lockfs": Needs(
        {
            "gcc": "gcc",
            "pkg-config": "pkg-config",
            "/usr/include/fuse3/fuse_lowlevel.h": "libfuse3-dev",
            "fusermount3": "fuse3",
            "ip": "iproute2",
        },
        ("/dev/fuse",),
    ),
    "guest": Needs(
        {"linux.uml": "user-mode-linux", "mkfs.ext4": "e2fsprogs", **COMPILER}, is_root_needed=False, is_shared=False
    ),
    "editors": Needs({"vim": "vim", "nano": "nano", "tmux": "tmux"}, is_root_needed=False, is_shared=False),
    "slurm": Needs(SLURM, is_shared=False),
    "slurm-accounting": Needs({**SLURM, "slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}, is_shared=False),
    "sshd": Needs({"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}, is_shared=False),
    "k8s": Needs(
        {"etcd": "etcd-server", "kubectl": "kubernetes-client", "openssl": "openssl", "ip": "iproute2"},
        built=(*CONTROL_PLANE, KUBELET, CONTAINER),
        to_build={"go": "golang-go", "dpkg-source": "dpkg-dev"},
        builder="kubernetes/build.py",
    ),
    # Besides what `k8s` needs.
    "volcano": Needs({"ssh-keygen": "openssh-client"}, is_shared=False),
    "tpu": Needs(
        {
            "gcloud": "google-cloud-cli",
            "sshd": "openssh-server",
            "ssh": "openssh-client",
            "ssh-keygen": "openssh-client",
            "ip": "iproute2",
        },
        is_shared=False,
    ),
    "podman": Needs(
        {"podman": "podman", "/usr/bin/catatonit": "catatonit", "/bin/busybox": "busybox-static"}, is_shared=False
    ),
    "browser": Needs({"/usr/bin/chromium": "chromium"}, is_root_needed=False),
    "modules": Needs({"/usr/share/modules/init/bash": "environment-modules"}, is_root_needed=False, is_shared=False),
}


def why_not(bed: str) -> str | None:
    """The line that says why this machine cannot have the bed; None where it can."""
    why = _why_missing(bed) or outcome(bed).why_not
    return refusal(bed, why) if why else None


def refusal(bed: str, why: str) -> str:
    return f"bed {bed}: cannot work here: {why}"


def outcome(bed: str) -> Outcome:
    """What came of booting it."""
    return Outcome(bed, NEEDS[bed].programs())


def _why_missing(bed: str) -> str | None:
    needs = NEEDS[bed]
    if needs.is_root_needed and os.geteuid() != 0:
        return "it needs root, because it runs in namespaces of its own"
    if missing := needs.missing():
        packages = " ".join(sorted(set(missing.values())))
        return f"{', '.join(missing)} missing: run scripts/install-beds, or apt-get install {packages}"
    if needs.unbuilt():
        return "its programs are not built: run scripts/install-beds, which takes some minutes"
    for device in needs.devices:
        if not os.path.exists(device):
            return f"this machine or container has no {device}"
    return _why_no_namespaces() if needs.is_root_needed else None


@functools.cache
def _why_no_namespaces() -> str | None:
    probe = subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"namespaces of its own are refused: {probe.stderr.strip()}" if probe.returncode else None


def _is_there(name: str) -> bool:
    return os.path.exists(name) if name.startswith("/") else shutil.which(name, path=SEARCH_PATH) is not None
