"""`notify:` of dispatcher.yaml: who is told what, by which way, and when not.

The secrets themselves are in files that only their owner can read. Here are only the paths: every command reads
dispatcher.yaml, and other members of the lab run commands, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from dispatcher.base import values
from dispatcher.base.values import BadValueError, Reader, shown
from dispatcher.errors import nearest
from dispatcher.hosts.fields import PartFault, PartsError, read_all, read_struct
from dispatcher.topics import Topic


class Smtp(msgspec.Struct, frozen=True, kw_only=True, tag="smtp"):
    """A mail server. `tls`: `none`, `starttls`, or `tls` from the first byte."""

    host: str
    sender: str
    to: tuple[str, ...]
    port: int
    tls: str
    user: str | None = None
    password_file: str | None = None
    ca_file: str | None = None


class Webhook(msgspec.Struct, frozen=True, kw_only=True, tag="webhook"):
    """An address that takes a POST of JSON. `form`: all that is known, or what Slack or Discord expect."""

    url: str | None = None
    url_file: str | None = None
    headers: Mapping[str, str] = {}
    headers_file: str | None = None
    form: str = "json"


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """A program; `form` is what it gets on stdin: `json` or `text`."""

    argv: tuple[str, ...]
    form: str = "json"


class Apprise(msgspec.Struct, frozen=True, kw_only=True, tag="apprise"):
    """Any service that Apprise knows; its address is in a file."""

    url_file: str


Channel: TypeAlias = Smtp | Webhook | Command | Apprise


class Quiet(msgspec.Struct, frozen=True):
    """A time of day when nobody is told, in minutes after midnight; it may go past midnight."""

    begin: int
    end: int


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One way to tell somebody. `after_s`: what happens until then is told together. `limit_s`: for one sending."""

    name: str
    channel: Channel
    topics: tuple[Topic, ...] = tuple(Topic)
    after_s: float = 60.0
    per_hour: int = 6
    quiet: Quiet | None = None
    limit_s: float = 30.0


class Notify(msgspec.Struct, frozen=True, kw_only=True):
    """All targets. `zone`: in which `quiet` is meant; None: that of the host.

    `nothing_running_after_s`: for how long nothing must have run although jobs wait.
    """

    targets: Mapping[str, Target] = {}
    zone: str | None = None
    nothing_running_after_s: float = 600.0


_QUIET: Final = re.compile(r"(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)", re.ASCII)
_ADDRESS: Final = re.compile(r"[^\s@<>,;:\"\\()\[\]\x00-\x1f\x7f]+@[^\s@<>,;:\"\\()\[\]\x00-\x1f\x7f]+")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PORTS: Final = {"none": 25, "starttls": 587, "tls": 465}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def parse_notify(value: object) -> Notify:
    """`notify:` of dispatcher.yaml. Raises PartsError with all faults."""
    readers = {**_LIMITS, "timezone": _zone, "nothing_running_after": values.parse_duration, "targets": _mapping}
    given = read_struct(value, readers, ["targets"], "keys such as targets, quiet and per_hour")
    common = {_LIMIT_FIELDS[key]: given[key] for key in given.keys() & _LIMITS.keys()}
    parts = ((f".targets.{name}", keys, _target(name, common)) for name, keys in given["targets"].items())
    targets = {target.name: target for target in read_all(parts)}
    fields = {field: given[key] for key, field in _FIELDS.items() if key in given}
    return Notify(targets=targets, **fields)


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping) or not value:
        raise BadValueError("expected names of targets, each with one of command, smtp, webhook, apprise")
    return value


def _target(name: object, common: Mapping[str, Any]) -> Reader:
    def read(value: object) -> Target:
        if not values.is_name(name):
            raise BadValueError("the name cannot be used; only letters, digits, '.', '_', '-', and a number in quotes")
        readers = {**_LIMITS, **_CHANNELS, "events": _topics}
        given = read_struct(value, readers, [], f"one of {', '.join(_CHANNELS)}, and keys such as events")
        ways = [key for key in _CHANNELS if key in given]
        if len(ways) != 1:
            raise BadValueError(f"expected one of {', '.join(_CHANNELS)}" + (f", not {len(ways)}" if ways else ""))
        fields = {**common, **{field: given[key] for key, field in _LIMIT_FIELDS.items() if key in given}}
        if "events" in given:
            fields["topics"] = given["events"]
        return Target(name=str(name), channel=given[ways[0]], **fields)

    return read


def _topics(value: object) -> tuple[Topic, ...]:
    words = values.parse_words(value)
    known = [topic.value for topic in Topic]
    for word in words:
        if word not in known:
            raise BadValueError(f"{shown(word)} is no event that can be told{nearest(word, known)}")
    return tuple(Topic(word) for word in words)


def _quiet(value: object) -> Quiet:
    found = _QUIET.fullmatch(value.strip()) if isinstance(value, str) else None
    hours = [] if found is None else [int(part) for part in found.groups()]
    # 24:00 is the end of the day.
    if not hours or max(hours[1], hours[3]) > 59 or max(hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]) > 1440:
        raise BadValueError('expected two times of day such as "22:00-07:00"')
    begin, end = (60 * hours[0] + hours[1]) % 1440, (60 * hours[2] + hours[3]) % 1440
    if begin == end:
        raise BadValueError("begins when it ends: nobody would ever be told; expected for example 22:00-07:00")
    return Quiet(begin, end)


def _zone(value: object) -> str:
    import zoneinfo

    name = values.parse_text(value)
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise BadValueError(
            "this host knows no such zone; expected a name such as Europe/Berlin (the package tzdata has all)"
        ) from None
    return name


def _per_hour(value: object) -> int:
    if type(value) is not int or not 1 <= value <= 100:
        raise BadValueError("expected a whole number from 1 to 100")
    return value


def _limit(value: object) -> float:
    seconds = values.parse_duration(value)
    if not 1 <= seconds <= 600:
        raise BadValueError("expected a time from 1s to 10m")
    return seconds


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise BadValueError('expected a list of arguments such as ["mail", "-s", "lab", "me@example.org"]')
    return tuple(values.parse_command(value))


def _command(value: object) -> Command:
    """A list of arguments, or `{argv: [...], input: text}`."""
    if not isinstance(value, Mapping):
        return Command(argv=_words(value))
    readers = {"argv": _words, "input": _one_of("json", "text")}
    given = read_struct(value, readers, ["argv"], "a list of arguments")
    return Command(argv=given["argv"], form=given.get("input", "json"))


def _smtp(value: object) -> Smtp:
    readers: dict[str, Reader] = {
        "host": _word,
        "port": _port,
        "from": _address,
        "to": _addresses,
        "tls": _one_of(*_PORTS),
        "user": _line,
        "password_file": _private,
        "ca_file": values.parse_private_path,
    }
    given = read_struct(value, readers, ["host", "from", "to"], "keys such as host, from and to")
    user, password = given.get("user"), given.get("password_file")
    if (user is None) != (password is None):
        raise BadValueError("user and password_file belong together: give both or none")
    tls = given.get("tls", "none" if given.get("port", 25) == 25 else "starttls")
    if user is not None and tls == "none" and given["host"] not in _LOOPBACK:
        raise BadValueError("the password would cross the network unencrypted: add tls: starttls, or tls: tls")
    return Smtp(
        host=given["host"],
        sender=given["from"],
        to=given["to"],
        port=given.get("port", _PORTS[tls]),
        tls=tls,
        user=user,
        password_file=password,
        ca_file=given.get("ca_file"),
    )


def _webhook(value: object) -> Webhook:
    readers: dict[str, Reader] = {
        "url": _hidden(_url),
        "url_file": _private,
        "headers": _hidden(_headers),
        "headers_file": _private,
        "format": _one_of("json", "slack", "discord"),
    }
    given = read_struct(value, readers, [], "url or url_file")
    if ("url" in given) == ("url_file" in given):
        raise BadValueError("expected one of url and url_file")
    return Webhook(form=given.pop("format", "json"), **given)


def _apprise(value: object) -> Apprise:
    given = read_struct(value, {"url_file": _private}, ["url_file"], "url_file")
    return Apprise(url_file=given["url_file"])


def _private(value: object) -> str:
    path = values.parse_text(value)
    if not path.startswith(("/", "~/")) or "\n" in path:
        raise BadValueError("expected an absolute path, or one that begins with ~/, of a file that only you can read")
    return path


def _word(value: object) -> str:
    text = values.parse_text(value)
    if re.search(r"[\s/\x00-\x1f\x7f]", text):
        raise BadValueError("expected the name or the address of a host")
    return text


def _line(value: object) -> str:
    text = values.parse_text(value)
    if not text.isprintable():
        raise BadValueError("expected one line of text")
    return text


def _port(value: object) -> int:
    if type(value) is not int or not 0 < value < 65536:
        raise BadValueError("expected a port, a number from 1 to 65535")
    return value


def _address(value: object) -> str:
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise BadValueError("expected an address such as lab@example.org")
    return value


def _addresses(value: object) -> tuple[str, ...]:
    return tuple(_address(word) for word in values.parse_words(value))


def check_url(text: str) -> str:
    """What is wrong with an address, without a word of it: it may be a secret; empty when nothing is."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not text.isascii() or re.search(r"[\s\x00-\x1f\x7f]", text):
        return "expected an address that begins with https:// or http://"
    return ""


def _url(value: object) -> str:
    if not isinstance(value, str) or check_url(value):
        raise BadValueError("expected an address that begins with https:// or http://")
    if "@" in value.partition("://")[2].partition("/")[0]:
        raise BadValueError("it contains a password: write it into a file that only you can read, and name url_file")
    return value


def _headers(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise BadValueError("expected names and values of headers")
    for name, text in value.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise BadValueError(f"{shown(name)} is not the name of a header")
        if name.lower() in ("authorization", "cookie", "proxy-authorization"):
            raise BadValueError(f"{name} is a secret: write `{name}: ...` into a file and name it with headers_file")
        if not isinstance(text, str) or not text.isascii() or not text.isprintable():
            raise BadValueError(f"the value of {name} is no text of one line")
    return dict(value)


def header_of(line: str) -> tuple[str, str] | None:
    """The header in a line `Name: value`; None when there is none."""
    name, colon, text = line.partition(":")
    text = text.strip()
    is_header = colon and _HEADER.fullmatch(name.strip()) and text.isascii() and text.isprintable()
    return (name.strip(), text) if is_header else None


def _hidden(read: Reader) -> Reader:
    """A reader whose faults do not show the value: it may be a secret."""

    def read_hidden(value: object) -> Any:
        try:
            return read(value)
        except PartsError:
            raise
        except BadValueError as error:
            raise PartsError([PartFault("", None, str(error), is_missing=True)]) from None

    return read_hidden


def _one_of(*words: str) -> Reader:
    def read(value: object) -> str:
        if value not in words:
            raise BadValueError(f"expected one of {', '.join(words)}")
        return str(value)

    return read


_LIMITS: Final[Mapping[str, Reader]] = {
    "after": values.parse_duration,
    "per_hour": _per_hour,
    "quiet": _quiet,
    "timeout": _limit,
}
_LIMIT_FIELDS: Final = {"after": "after_s", "per_hour": "per_hour", "quiet": "quiet", "timeout": "limit_s"}
_FIELDS: Final = {"timezone": "zone", "nothing_running_after": "nothing_running_after_s"}
_CHANNELS: Final[Mapping[str, Reader]] = {
    "command": _hidden(_command),
    "smtp": _hidden(_smtp),
    "webhook": _hidden(_webhook),
    "apprise": _hidden(_apprise),
}
