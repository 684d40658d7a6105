"""Hosts that are reached by ssh and by nothing else: each is an sshd in a namespace of its own.

    with SshBed(["h1", "h2"]) as ssh:
        subprocess.run(["ssh", "-F", ssh.config, "h1", "hostname"])     # h1
        with ssh["h2"].away(): ...

Each is a `Computer` at a port of 127.0.0.1, behind a network that delays, swallows or refuses what goes through.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ports import Ports

from .bed import BedError, plain_directory
from .computer import Computer, HostSettings, keygen
from .namespace import accepts
from .needs import why_not
from .relay import Relay

SSH_CONFIG = """\
Host {name}
  HostName 127.0.0.1
  Port {port}
  User {user}
  HostKeyAlias {name}
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 5
  LogLevel ERROR

"""


class SshHost(Computer):
    def __init__(self, bed: SshBed, name: str, settings: HostSettings) -> None:
        super().__init__(name, bed.directory / name, settings, seen=bed.directory)
        self._bed = bed
        self.port, self._sshd_port = bed.ports.take(), bed.ports.take()
        self.network = Relay(self.port, self._sshd_port)
        self.boot()

    def _listen(self) -> tuple[str, int]:
        return "127.0.0.1", self._sshd_port

    def _is_listening(self) -> bool:
        return accepts(self._sshd_port)

    def _authorized_keys(self) -> str:
        return f"{self._bed.key}.pub"

    def away(self) -> contextlib.AbstractContextManager[None]:
        """Connections break and new ones are refused; what runs on it goes on."""
        return self.network.down()

    def silent(self) -> contextlib.AbstractContextManager[None]:
        """Connections stay, and nothing comes through."""
        return self.network.silent()

    @contextlib.contextmanager
    def slow(self, delay_s: float) -> Iterator[None]:
        """Each packet takes this long, each way."""
        self.network.delay_s = delay_s
        try:
            yield
        finally:
            self.network.delay_s = 0.0

    def replace_key(self) -> None:
        """Another host key, in use from now on, that nobody has been told about."""
        self.change_key()
        self.stop_sshd()
        self.start_sshd()

    def trust_key(self) -> None:
        """Make the host's key the known one."""
        self._bed.write_known_hosts()

    def close(self) -> None:
        self.network.close()
        self.power_cut()


class SshBed:
    """A context manager."""

    def __init__(self, names: Sequence[str] = ("h1", "h2"), settings: HostSettings | None = None) -> None:
        if reason := why_not("sshd"):
            raise BedError(reason)
        self.directory = Path(tempfile.mkdtemp(prefix="sshd-", dir=plain_directory()))
        self.directory.chmod(0o755)
        self.key = self.directory / "key"
        self.config = self.directory / "ssh_config"
        self.known_hosts = self.directory / "known_hosts"
        self.ports = Ports()
        self.settings = settings or HostSettings()
        self.hosts: dict[str, SshHost] = {}
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            keygen(self.key)
            for name in names:
                self.hosts[name] = SshHost(self, name, self.settings)
            self.write_known_hosts()
            values = {"user": self.settings.user, "key": self.key, "known_hosts": self.known_hosts}
            blocks = [SSH_CONFIG.format(name=host.name, port=host.port, **values) for host in self.hosts.values()]
            self.config.write_text("".join(blocks))
            undo.pop_all()

    def __enter__(self) -> SshBed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> SshHost:
        return self.hosts[name]

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.ports.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def write_known_hosts(self) -> None:
        self.known_hosts.write_text("".join(f"{host.name} {host.public_key()}\n" for host in self.hosts.values()))

    def ssh(self, *words: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run ssh with the bed's configuration."""
        return subprocess.run(
            ["ssh", "-F", str(self.config), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
