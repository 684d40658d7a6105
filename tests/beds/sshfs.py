"""One directory that two hosts have mounted through sshfs, from an sshd that serves nobody else.

    with SshfsBed() as bed:
        a, b = bed.hosts()                         # sshfs with its defaults
        a, b = bed.hosts("dir_cache=no,direct_io") # with these options

Locks taken through sshfs stay on the host that takes them.
"""

from __future__ import annotations

import os
import shutil

from .bed import wait_for
from .fuse import FuseBed
from .needs import SEARCH_PATH

PORT = 2022
# `UsePAM no` and keys of its own: nothing of this machine's accounts is consulted but that root exists.
SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
"""


class SshfsBed(FuseBed):
    name = "sshfs"

    def _up(self) -> None:
        super()._up()
        folder = f"{self.directory}/ssh"
        os.mkdir(self.outside(folder), 0o700)
        for key in ("host_key", "key"):
            self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{key}")
        config = self.write(f"{folder}/sshd_config", SSHD_CONFIG.format(port=PORT, folder=folder))
        sshd = shutil.which("sshd", path=SEARCH_PATH)
        # sshd wants /run/sshd; it gets one that this machine does not see.
        private_run = f'mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec {sshd} -D -e -f "$0"'
        log = f"{folder}/sshd.log"
        self.start(["unshare", "--mount", "sh", "-c", private_run, config], log)
        wait_for(self._answers, lambda: f"sshd did not start:\n{self.log_tail(log)}")

    def _answers(self) -> bool:
        try:
            with self.connect("127.0.0.1", PORT):
                return True
        except ConnectionError:
            return False

    def _mount_command(self, variant: str, view: str) -> list[str]:
        options = [
            f"IdentityFile={self.directory}/ssh/key",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            *([variant] if variant else []),
        ]
        ssh = ["-F", "none", "-p", str(PORT), "-o", ",".join(options)]
        return ["sshfs", "-f", *ssh, f"root@127.0.0.1:{self.lower}", view]
