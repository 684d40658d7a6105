"""`notify:` of dispatcher.yaml: who gets which notices, by which way, and when not.

The secrets themselves are in files that only their owner can read. Here are only the paths: every command reads
dispatcher.yaml, and other members of the lab run commands, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from dispatcher.base import values
from dispatcher.base.schema import json_schema, reading
from dispatcher.base.schema.faults import PartFault, PartsError, read_all
from dispatcher.base.schema.kinds import TEXT, Duration, PrivatePath, number, one_or_many, read_later
from dispatcher.base.schema.types import Key, Value
from dispatcher.base.values import BadValueError, Reader, shown
from dispatcher.errors import nearest
from dispatcher.topics import Topic

_QUIET: Final = r"(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)"
_ADDRESS: Final = r"[^\s@<>,;:\"\\()\[\]\x00-\x1f\x7f]+@[^\s@<>,;:\"\\()\[\]\x00-\x1f\x7f]+"
_HEADER: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PORTS: Final = {"none": 25, "starttls": 587, "tls": 465}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class Quiet(msgspec.Struct, frozen=True):
    """A time of day without notices, in minutes after midnight; it may go past midnight."""

    begin: int
    end: int


def _quiet(value: object) -> Quiet:
    found = re.fullmatch(_QUIET, value.strip(), re.ASCII) if isinstance(value, str) else None
    hours = [] if found is None else [int(part) for part in found.groups()]
    # 24:00 is the end of the day.
    if not hours or max(hours[1], hours[3]) > 59 or max(hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]) > 1440:
        raise BadValueError('expected two times of day such as "22:00-07:00"')
    begin, end = (60 * hours[0] + hours[1]) % 1440, (60 * hours[2] + hours[3]) % 1440
    if begin == end:
        raise BadValueError("begins when it ends, so no notice would ever be sent; expected for example 22:00-07:00")
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


def _topics(value: object) -> tuple[Topic, ...]:
    words = values.parse_words(value)
    known = [topic.value for topic in Topic]
    for word in words:
        if word not in known:
            raise BadValueError(f"{shown(word)} is not an event{nearest(word, known)}")
    return tuple(Topic(word) for word in words)


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
    if not isinstance(value, str) or not re.fullmatch(_ADDRESS, value):
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
        if not isinstance(name, str) or not re.fullmatch(_HEADER, name):
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
    is_header = colon and re.fullmatch(_HEADER, name.strip()) and text.isascii() and text.isprintable()
    return (name.strip(), text) if is_header else None


_Zone: TypeAlias = Annotated[str, Value(_zone, TEXT)]
_PerHour: TypeAlias = Annotated[int, number(1, 100, _per_hour)]
_Quiet: TypeAlias = Annotated[Quiet, Value(_quiet, {"type": "string", "pattern": f"^\\s*{_QUIET}\\s*$"})]
_Limit: TypeAlias = Annotated[float, Value(_limit, json_schema.of_type(Duration))]
_Topics: TypeAlias = Annotated[
    tuple[Topic, ...], Value(_topics, one_or_many({"enum": [topic.value for topic in Topic]}, 1))
]
_Private: TypeAlias = Annotated[str, Value(_private, {"type": "string", "pattern": "^(/|~/)"})]
_HostName: TypeAlias = Annotated[str, Value(_word, {"type": "string", "pattern": r"^[^\s/]+$"})]
_Line: TypeAlias = Annotated[str, Value(_line, TEXT)]
_Port: TypeAlias = Annotated[int, number(1, 65535, _port)]
_Address: TypeAlias = Annotated[str, Value(_address, {"type": "string", "pattern": "@"})]
_Addresses: TypeAlias = Annotated[
    tuple[str, ...], Value(_addresses, one_or_many({"type": "string", "pattern": "@"}, 1))
]
_Url: TypeAlias = Annotated[str, Value(_url, {"type": "string", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://"})]
_Headers: TypeAlias = Annotated[
    Mapping[str, str], Value(_headers, {"type": "object", "additionalProperties": {"type": "string"}})
]
_Arguments: TypeAlias = Annotated[
    tuple[str, ...], Value(_words, {"type": "array", "items": {"type": "string"}, "minItems": 1})
]


class Smtp(msgspec.Struct, frozen=True, kw_only=True, tag="smtp"):
    """A mail server. `port` 0 and `tls` '' become what the other one says."""

    EXAMPLE: ClassVar[str] = "host, from and to"

    host: Annotated[_HostName, Key("the mail server")]
    sender: Annotated[_Address, Key("the sender's address", name="from")]
    to: Annotated[_Addresses, Key("addresses of those who get the notices")]
    port: Annotated[_Port, Key("its port", default="25 without TLS, 587 with STARTTLS, 465 with TLS")] = 0
    tls: Annotated[
        Literal["none", "starttls", "tls"],
        Key("`none`, `starttls`, or `tls` from the first byte", default="`none` on port 25, else `starttls`"),
    ] = ""  # type: ignore[assignment] # until __post_init__ has set it
    user: Annotated[_Line | None, Key("the user who logs in, with `password_file`")] = None
    password_file: Annotated[_Private | None, Key("a file with the password, that only you can read")] = None
    ca_file: Annotated[PrivatePath | None, Key("certificates", default="those that the host trusts")] = None

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password_file is None):
            raise BadValueError("user and password_file belong together: give both or none")
        if not self.tls:
            msgspec.structs.force_setattr(self, "tls", "none" if self.port in (0, 25) else "starttls")
        if not self.port:
            msgspec.structs.force_setattr(self, "port", _PORTS[self.tls])
        if self.user is not None and self.tls == "none" and self.host not in _LOOPBACK:
            raise BadValueError("the password would cross the network unencrypted: add tls: starttls, or tls: tls")


class Webhook(msgspec.Struct, frozen=True, kw_only=True, tag="webhook"):
    """An address that takes a POST of JSON."""

    EXAMPLE: ClassVar[str] = "url or url_file"

    url: Annotated[_Url | None, Key("the address, if it is no secret", is_secret=True)] = None
    url_file: Annotated[_Private | None, Key("a file with the address, that only you can read")] = None
    headers: Annotated[_Headers, Key("headers, if they are no secrets", is_secret=True)] = {}
    headers_file: Annotated[_Private | None, Key("a file with lines `Name: value`, that only you can read")] = None
    form: Annotated[
        Literal["json", "slack", "discord"],
        Key("`json`: all that is known, or what `slack` or `discord` expect", name="format"),
    ] = "json"

    def __post_init__(self) -> None:
        if (self.url is None) == (self.url_file is None):
            raise BadValueError("expected one of url and url_file")


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """A program that gets the notice on stdin."""

    EXAMPLE: ClassVar[str] = "{argv: [tee, -a, notices.txt], input: text}"

    argv: Annotated[_Arguments, Key("the program and its arguments; no shell runs it", is_short=True)]
    form: Annotated[Literal["json", "text"], Key("what it gets on stdin", name="input")] = "json"


class Apprise(msgspec.Struct, frozen=True, kw_only=True, tag="apprise"):
    """Any service that Apprise knows; its address is in a file."""

    url_file: Annotated[_Private, Key("a file with one address as Apprise knows them, that only you can read")]


Channel: TypeAlias = Smtp | Webhook | Command | Apprise


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When notices are sent: of one target, or of all that do not say so themselves."""

    after_s: Annotated[Duration, Key("how long to wait for more after something has happened, to send one notice")] = (
        60.0
    )
    per_hour: Annotated[
        _PerHour, Key("notices to a target in any hour, further tries of one that failed included; 1 to 100")
    ] = 6
    quiet: Annotated[_Quiet | None, Key("a time of day without notices, `22:00-07:00`; it may go past midnight")] = None
    limit_s: Annotated[
        _Limit, Key("for one sending, 1s to 10m: then the process that sends is killed", name="timeout")
    ] = 30.0


class Target(Timing, frozen=True, kw_only=True):
    """One way to send notices: one of `command`, `smtp`, `webhook` and `apprise`."""

    name: str
    topics: Annotated[_Topics, Key("[what](#events) this target gets", name="events", default="all")] = tuple(Topic)
    command: Annotated[
        Command | None,
        Key("arguments of a program (no shell runs it), which gets the notice on stdin as JSON; or `{argv: [...], "
            "input: text}`. Exit status 0 says that it was delivered; the last line of its stderr is recorded "
            "otherwise", is_secret=True),
    ] = None  # fmt: skip
    smtp: Annotated[
        Smtp | None,
        Key("a mail server: `host`, `from`, `to`, `port`, `tls` (`none`, `starttls`, `tls`), `user` with "
            "`password_file`, `ca_file`. Port 25 is without TLS; with another port, STARTTLS. `tls: starttls` alone is "
            "port 587, `tls: tls` 465", is_secret=True),
    ] = None  # fmt: skip
    webhook: Annotated[
        Webhook | None,
        Key("a POST of JSON: `url` or `url_file`, `headers`, `headers_file` (lines `Name: value`), `format` (`json`: "
            "everything, `slack`, `discord`)", is_secret=True),
    ] = None  # fmt: skip
    apprise: Annotated[
        Apprise | None,
        Key("`url_file`: one address as Apprise knows them; `pip install 'dispatcher[notify]'`", is_secret=True),
    ] = None  # fmt: skip

    def __post_init__(self) -> None:
        given = len(self._channels)
        if given != 1:
            why = f"expected one of {', '.join(_CHANNELS)}" + (f", not {given}" if given else "")
            raise PartsError([PartFault("", None, why, is_hidden=True)])

    @property
    def _channels(self) -> list[Channel]:
        return [one for one in (self.command, self.smtp, self.webhook, self.apprise) if one is not None]

    @property
    def channel(self) -> Channel:
        return self._channels[0]


_CHANNELS: Final = ("command", "smtp", "webhook", "apprise")
_TARGETS_EXPECTED: Final = f"expected names of targets, each with one of {', '.join(_CHANNELS)}"


def _targets_schema() -> Mapping[str, Any]:
    return {"type": "object", "minProperties": 1, "additionalProperties": json_schema.of_struct(Target)}


class Notify(Timing, frozen=True, kw_only=True):
    """All targets. `zone`: in which `quiet` is meant; None: that of the host."""

    EXAMPLE: ClassVar[str] = "targets, quiet and per_hour"

    targets: Annotated[
        Mapping[str, Target], read_later(_targets_schema), Key("names of [targets](#targets), each with its keys")
    ]
    zone: Annotated[
        _Zone | None,
        Key("in which `quiet` is meant, and times in notices are written: containers often have UTC", name="timezone",
            default="that of the pod's host"),
    ] = None  # fmt: skip
    nothing_running_after_s: Annotated[
        Duration, Key("how long nothing must have run, although jobs wait, before that is sent")
    ] = 600.0


def parse_notify(value: object) -> Notify:
    """`notify:` of dispatcher.yaml. Raises PartsError with all faults."""
    notify = reading.convert(Notify, value)
    assert isinstance(notify, Notify)
    described: object = notify.targets
    if not isinstance(described, Mapping) or not described:
        raise PartsError([PartFault(".targets", None, _TARGETS_EXPECTED, is_hidden=True)])
    common = {field: getattr(notify, field) for field in Timing.__struct_fields__}
    parts = ((f".targets.{name}", keys, _target(name, common)) for name, keys in described.items())
    targets = {target.name: target for target in read_all(parts)}
    return msgspec.structs.replace(notify, targets=targets)


def _target(name: object, common: Mapping[str, Any]) -> Reader:
    def read(value: object) -> Target:
        if not values.is_name(name):
            raise BadValueError("the name cannot be used; only letters, digits, '.', '_', '-', and a number in quotes")
        if not isinstance(value, Mapping):
            raise BadValueError(f"expected one of {', '.join(_CHANNELS)}, and keys such as events")
        found, faults = reading.parse(Target, value)
        if faults:
            raise PartsError(faults)
        return Target(**{**common, **found, "name": str(name)})

    return read
