"""The real podman in directories of a test, with an image that no registry has."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

IMAGE = "localhost/tiny:1"
PODMAN = "/usr/bin/podman"
BUSYBOX = Path("/bin/busybox")


class Podman:
    """`folder` has its storage, and `folder/bin` a `podman` for PATH.

    Where the kernel shows both versions of control groups, crun refuses to run: that program hides the second one. A
    machine that lacks a capability refuses the limits that podman raises by default.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver="vfs"\nrunroot="{folder}/run"\ngraphroot="{folder}/store"\n'
        )
        (folder / "containers.conf").write_text(
            '[containers]\ndefault_ulimits=["nofile=1000:1000","nproc=1000:1000"]\n'
            f'[engine]\ncgroup_manager="cgroupfs"\nevents_logger="file"\ntmp_dir="{folder}/tmp"\n'
            # Others are in /dev/shm, and stay there.
            'lock_type="file"\n'
        )
        self.environment = {
            "CONTAINERS_CONF": f"{folder}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
        }
        self.bin = folder / "bin"
        self.bin.mkdir()
        program = self.bin / "podman"
        # crun keeps its state in /run otherwise.
        own = f"{PODMAN} --runtime-flag=root={folder}/crun"
        program.write_text(
            "#!/bin/bash\n[[ ! -d /sys/fs/cgroup/unified ]] || exec unshare --mount bash -c "
            f'\'umount /sys/fs/cgroup/unified; exec "$@"\' bash {own} "$@"\nexec {own} "$@"\n'
        )
        program.chmod(0o755)
        image = folder / "image.tar"
        image.write_bytes(_image())
        self("import", os.fspath(image), IMAGE)

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            [self.bin / "podman", *words],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[str]:
        return self("ps", "--all", "--format", "{{.Names}}").splitlines()

    def close(self) -> None:
        with contextlib.suppress(AssertionError):
            self("rm", "--force", "--time", "0", "--all")
        # What podman and crun make for all their users and do not remove; what is in use stays.
        for top in (*Path("/sys/fs/cgroup").glob("*/libpod_parent"), Path("/run/crun")):
            for directory, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)


def _image() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("bin", "tmp", "proc", "dev", "sys", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        tar.add(BUSYBOX, "bin/busybox")
        for name in ("sh", "sleep", "cat", "echo", "env", "id", "ls", "touch", "true", "readlink", "nproc", "kill"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return buffer.getvalue()
