"""A machine of a bed that is reached by ssh: an sshd in a namespace, with accounts, a disk and power of its own.

It has a name, a boot id, processes, a home directory and a /tmp of its own. It sees this machine's programs, but of the
test's temporary directories only its own and those named in `shared`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .bed import wait_for
from .namespace import Daemon, Namespace, tail
from .needs import SEARCH_PATH

# What sshd gives its sessions, and nothing of this machine's own.
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SSHD_CONFIG = """\
ListenAddress {address}
Port {port}
HostKey {directory}/host_key
PidFile none
AuthorizedKeysFile {authorized_keys}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 100:30:200
MaxSessions {max_sessions}
SetEnv {variables}
Subsystem sftp internal-sftp
"""
CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class HostSettings:
    """`user` logs in; `shared` are directories of this machine that the host sees; `env` is set in every session.

    `disk_mib` limits the home directory, whose files are then lost with the host's power.
    """

    user: str = "root"
    shared: Sequence[Path] = ()
    disk_mib: int | None = None
    max_sessions: int = 10
    env: Mapping[str, str] = field(default_factory=dict)


class Computer:
    """`home` is its user's home directory, as the host sees it. It sees `seen`, where its `directory` is.

    A subclass says how one gets at its sshd: `_listen`, `_is_listening`, and `_authorized_keys` as sshd_config has it.
    """

    # Whether it has a network of its own, which `_connect` then plugs in.
    has_network = False

    def __init__(self, name: str, directory: Path, settings: HostSettings, seen: Path) -> None:
        self.name, self.directory, self.settings = name, directory, settings
        user = self.user = settings.user
        self.home = "/root" if user == "root" else f"/home/{user}"
        self.bin = self.directory / "bin"
        self._seen = seen
        for folder in ("bin", "home", "etc"):
            (self.directory / folder).mkdir(parents=True)
        account = pwd.getpwnam(user)
        os.chown(self.directory / "home", account.pw_uid, account.pw_gid)
        self._write_accounts(account)
        self.change_key()
        self._namespace: Namespace | None = None
        self._sshd: Daemon | None = None

    def _listen(self) -> tuple[str, int]:
        raise NotImplementedError

    def _is_listening(self) -> bool:
        raise NotImplementedError

    def _authorized_keys(self) -> str:
        raise NotImplementedError

    def path(self, inside: str | os.PathLike[str]) -> Path:
        """Where this process finds a path of the host; a relative one is below its user's home."""
        assert self._namespace is not None
        return self._namespace.path(os.path.join(self.home, inside))

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command on the host as root and without ssh: what it prints."""
        assert self._namespace is not None
        return self._namespace.run(*argv, check=check)

    def processes(self, name: str | None = None) -> list[int]:
        assert self._namespace is not None
        return self._namespace.processes(name)

    # Power.

    def boot(self) -> None:
        """Bring it up with a new boot id."""
        (self.directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self._namespace = Namespace(self.name, self._mounts(), self.settings.env, has_network=self.has_network)
        self._connect()
        self.start_sshd()

    def _connect(self) -> None:
        """Plug in the network, where it has one of its own."""

    def power_cut(self) -> None:
        """End all that runs on it at once. What is on its disk stays, unless it has a disk of limited size."""
        if self._namespace is not None:
            self._namespace.close()
            self._namespace = None

    def start_sshd(self) -> None:
        assert self._namespace is not None
        config = self.directory / "sshd_config"
        address, port = self._listen()
        variables = {**self.settings.env, "PATH": f"{self.bin}:{HOST_PATH}"}
        values = {
            "address": address,
            "port": port,
            "directory": self.directory,
            "authorized_keys": self._authorized_keys(),
            "max_sessions": self.settings.max_sessions,
            "variables": " ".join(shlex.quote(f"{key}={value}") for key, value in variables.items()),
        }
        config.write_text(SSHD_CONFIG.format(**values))
        sshd = shutil.which("sshd", path=SEARCH_PATH)
        assert sshd
        self._sshd = self._namespace.start(sshd, "-D", "-e", "-f", str(config), log=self.directory / "sshd.log")
        wait_for(self._is_listening, lambda: f"sshd: {self.log()}", every_s=0.005)

    def stop_sshd(self) -> None:
        """End its sshd and all sessions of it; what detached itself from its session goes on."""
        assert self._namespace is not None
        assert self._sshd is not None
        self._namespace.kill(self.processes("sshd"))
        self._sshd.end()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """All its processes are stopped; connections are still accepted, by the kernel."""
        assert self._namespace is not None
        stopped = self.processes()
        self._namespace.kill(stopped, signal.SIGSTOP)
        try:
            yield
        finally:
            self._namespace.kill(stopped, signal.SIGCONT)

    # What is on it.

    def change_key(self) -> None:
        """Another host key, as after a new installation; sshd has it after `stop_sshd` and `start_sshd`."""
        key = self.directory / "host_key"
        for file in (key, key.with_suffix(".pub")):
            file.unlink(missing_ok=True)
        keygen(key)

    def public_key(self) -> str:
        return (self.directory / "host_key.pub").read_text().rpartition(" ")[0]

    def install(self, program: str, text: str) -> None:
        """Put a program in front of the PATH of every session on this host."""
        file = self.bin / program
        file.write_text(text)
        file.chmod(0o755)

    def greet(self, text: str) -> None:
        """Print this at the beginning of every session, from .bashrc, on both streams."""
        line = f"printf '%s\\n' {shlex.quote(text)} | tee /dev/stderr\n"
        self.path(".bashrc").write_text(line)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """No room for another byte in the home directory, which must have a limited size (`disk_mib`)."""
        assert self.settings.disk_mib, "a host without disk_mib has all the room of this machine"
        ballast = self.path(".ballast")
        with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 12)):
                pass
        try:
            yield
        finally:
            ballast.unlink()

    def log(self) -> str:
        return tail(self.directory / "sshd.log")

    def _write_accounts(self, account: pwd.struct_passwd) -> None:
        """The accounts of this machine, but that this one has a shell and a home."""
        other = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith(f"{self.user}:")]
        own = f"{self.user}:x:{account.pw_uid}:{account.pw_gid}::{self.home}:/bin/bash"
        (self.directory / "etc" / "passwd").write_text("\n".join([own, *other, ""]))
        shadow = [f"{line.partition(':')[0]}:*:19000:0:99999:7:::" for line in [own, *other]]
        (self.directory / "etc" / "shadow").write_text("\n".join([*shadow, ""]))

    def _mounts(self) -> list[str]:
        quote = shlex.quote
        own = quote(str(self.directory))
        # Kept across the mounts over them; /run is private already, so nothing is left on this machine.
        hidden = temporary_directories()
        # The package and its stand-ins are on every host, also where they are checked out below one of these.
        checkout = [CHECKOUT] if any(CHECKOUT.is_relative_to(path) for path in hidden) else []
        kept = [self._seen, *checkout, *self.settings.shared]
        account = pwd.getpwnam(self.user)
        lines = ["mount -t tmpfs -o mode=755 run /run", "mkdir -m 755 /run/sshd /run/kept", "mkdir -m 1777 /run/lock"]
        for index, path in enumerate(kept):
            lines.append(f"mkdir /run/kept/{index} && mount --rbind {quote(str(path))} /run/kept/{index}")
        lines += [f"mount -t tmpfs -o mode=1777 private {quote(path)}" for path in hidden]
        shown = [
            f"mkdir -p {quote(str(path))} && mount --rbind /run/kept/{index} {quote(str(path))} && "
            f"umount -l /run/kept/{index}"
            for index, path in enumerate(kept)
        ]
        # The home comes from the first of them, and what is shared may be in it.
        lines.append(shown[0])
        if self.home != "/root":
            lines.append("mount -t tmpfs -o mode=755 home /home")
        lines.append(f"mkdir -p {self.home}")
        if self.settings.disk_mib:
            options = f"size={self.settings.disk_mib}m,mode=755,uid={account.pw_uid},gid={account.pw_gid}"
            lines.append(f"mount -t tmpfs -o {options} disk {self.home}")
        else:
            lines.append(f"mount --bind {own}/home {self.home}")
        lines += shown[1:]
        lines += [f"mount --bind {own}/etc/{name} /etc/{name}" for name in ("passwd", "shadow")]
        lines.append(f"mount --bind {own}/boot_id /proc/sys/kernel/random/boot_id")
        return lines


def temporary_directories() -> list[str]:
    """Where this machine's temporary files are; no one of these is below another, which would hide it."""
    found = {Path("/tmp"), Path(tempfile.gettempdir())}
    return sorted(str(path) for path in found if not any(path.is_relative_to(other) for other in found - {path}))


def seen_in_tmp(*directories: Path) -> set[str]:
    """What a host sees in /tmp that sees these directories and the package: of those that are there."""
    return {path.parts[2] for path in (*directories, CHECKOUT) if path.is_relative_to("/tmp")}


def keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bed", "-f", str(path)], check=True)
