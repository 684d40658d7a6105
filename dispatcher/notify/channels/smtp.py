"""Mail through an SMTP server."""

from __future__ import annotations

import os
import smtplib
import ssl
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import Any

from dispatcher.base.secrets import read_line
from dispatcher.notify.channels import RefusedError
from dispatcher.notify.text import one_line
from dispatcher.notify_config import Smtp


def send(channel: Smtp, notice: Mapping[str, Any], begin: Callable[[], None], limit_s: float) -> str:
    """Deliver the notice to the server. It is out when the server has accepted its content."""
    message = _message(channel, notice)
    password = None if channel.password_file is None else read_line(channel.password_file)
    server: smtplib.SMTP | None = None
    try:
        server = _connect(channel, limit_s)
        if channel.user is not None and password is not None:
            server.login(channel.user, password)
        server.mail(channel.sender)
        refused = _recipients(server, channel)
    except smtplib.SMTPException as error:
        # Nothing of the message has been sent.
        raise RefusedError(_why(error, password)) from None
    begin()
    try:
        # Lines end in CRLF: servers refuse a bare newline, or take all lines for a single one that is too long.
        code, said = server.data(message.as_bytes(policy=SMTP))
    except smtplib.SMTPDataError as error:
        raise RefusedError(_why(error, password)) from None
    if code != 250:
        raise RefusedError(_answer(code, said, password))
    return f"refused for {', '.join(refused)}" if refused else ""


def _message(channel: Smtp, notice: Mapping[str, Any]) -> EmailMessage:
    message = EmailMessage()
    message["From"] = channel.sender
    message["To"] = ", ".join(channel.to)
    message["Subject"] = one_line(notice["subject"])
    message["Date"] = formatdate(localtime=True)
    # The same for each try: a mailbox that has the notice already can tell.
    message["Message-ID"] = f"<{notice['id']}@{channel.sender.rpartition('@')[2]}>"
    # No out-of-office replies.
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(notice["text"], cte="quoted-printable")
    return message


def _connect(channel: Smtp, limit_s: float) -> smtplib.SMTP:
    ca_file = None if channel.ca_file is None else os.path.expanduser(channel.ca_file)
    if channel.tls == "tls":
        context = ssl.create_default_context(cafile=ca_file)
        return smtplib.SMTP_SSL(channel.host, channel.port, timeout=limit_s, context=context)
    server = smtplib.SMTP(channel.host, channel.port, timeout=limit_s)
    server.ehlo_or_helo_if_needed()
    if channel.tls == "starttls":
        server.starttls(context=ssl.create_default_context(cafile=ca_file))
        server.ehlo()
    return server


def _recipients(server: smtplib.SMTP, channel: Smtp) -> list[str]:
    """Name the recipients; those that the server refuses. Raises when it refuses all."""
    refused = {}
    for address in channel.to:
        code, said = server.rcpt(address)
        if code not in (250, 251):
            refused[address] = (code, said)
    if len(refused) == len(channel.to):
        raise smtplib.SMTPRecipientsRefused(refused)
    return list(refused)


def _why(error: smtplib.SMTPException, password: str | None) -> str:
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        (address, (code, said)), *_ = error.recipients.items()
        return f"{address}: {_answer(code, said, password)}"
    if isinstance(error, smtplib.SMTPResponseException):
        return _answer(error.smtp_code, error.smtp_error, password)
    if isinstance(error, smtplib.SMTPServerDisconnected):
        return "the server closed the connection"
    if isinstance(error, smtplib.SMTPNotSupportedError):
        # The extension is STARTTLS or AUTH: both depend on what `tls` says.
        return one_line(f"{error} Does `tls` (none, starttls, tls) fit the server's port?")
    return type(error).__name__


def _answer(code: int, said: bytes | str, password: str | None) -> str:
    """What the server answered, without the password if it repeats that."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    if password:
        text = text.replace(password, "***")
    return one_line(f"the server answered {code} {text}")
