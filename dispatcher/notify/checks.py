"""Whether the targets can be used by this process: refused at the start, not at night when a notice is due."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dispatcher.base.secrets import SecretError, read_line, read_secret
from dispatcher.errors import ConfigError
from dispatcher.notify_config import Apprise, Command, Notify, Smtp, Target, Webhook, check_url, header_of


def refuse_unusable(config_file: Path, notify: Notify) -> None:
    """Raise ConfigError with everything that keeps this user from sending, on this host."""
    faults = [
        f"notify.targets.{name}.{fault}" for name, target in notify.targets.items() for fault in faults_in(target)
    ]
    if faults:
        raise ConfigError.of(config_file, faults)


def faults_in(target: Target) -> Iterator[str]:
    """What is wrong with a target: the key, and what to do."""
    channel = target.channel
    if isinstance(channel, Command):
        yield from _command_faults(channel)
    elif isinstance(channel, Smtp):
        if channel.password_file is not None:
            yield from _fault_of("smtp.password_file", channel.password_file)
        if channel.ca_file is not None and not os.access(os.path.expanduser(channel.ca_file), os.R_OK):
            yield f"smtp.ca_file: {channel.ca_file} cannot be read"
    elif isinstance(channel, Webhook):
        yield from _webhook_faults(channel)
    elif isinstance(channel, Apprise):
        if importlib.util.find_spec("apprise") is None:
            yield "apprise: Apprise is not installed: `pip install 'dispatcher[notify]'`"
        yield from _fault_of("apprise.url_file", channel.url_file)


def _command_faults(channel: Command) -> Iterator[str]:
    program = channel.argv[0]
    if shutil.which(program) is None:
        where = "cannot be executed" if os.path.exists(program) else "there is no such command"
        yield f"command: {program}: {where} on this host: install it, or name its full path"


def _webhook_faults(channel: Webhook) -> Iterator[str]:
    if channel.url_file is not None:
        yield from _fault_of("webhook.url_file", channel.url_file)
    if channel.headers_file is not None:
        try:
            header_lines(channel.headers_file)
        except SecretError as error:
            yield f"webhook.headers_file: {error}"


def _fault_of(key: str, path: str) -> Iterator[str]:
    try:
        text = read_line(path)
        fault = check_url(text) if key == "webhook.url_file" else ""
        if fault:
            raise SecretError(f"{path}: {fault}")
    except SecretError as error:
        yield f"{key}: {error}"


def header_lines(path: str) -> dict[str, str]:
    """The headers in a file of lines `Name: value`. Raises SecretError."""
    found = {}
    for number, line in enumerate(read_secret(path).splitlines(), 1):
        header = header_of(line)
        if header is None:
            raise SecretError(f"{path}: line {number} is no header such as `Authorization: Bearer ...`")
        found[header[0]] = header[1]
    return found
