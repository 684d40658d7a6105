"""Mail over TLS, to a real server with a certificate of its own: what is encrypted, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from certificates import Certificate
from one_try import private, sent, target
from told_servers import MailServer, mail_server

from dispatcher.notify.process import Outcome

SECRET = "hunter2-s3cret"


def mail(server: MailServer, folder: Path, **keys: Any) -> dict[str, Any]:
    """A target with a password; `keys` are further ones of `smtp`."""
    password_file = private(folder / "password", SECRET)
    common = {"host": "127.0.0.1", "port": server.port, "from": "lab@example.org", "to": "ada@example.org"}
    return {"smtp": {**common, "user": "lab", "password_file": password_file, **keys}}


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_mail_and_password_go_through_tls(tls: str, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    with mail_server(password=SECRET, tls=tls, context=certificate.server_context()) as server:
        keys = mail(server, tmp_path, tls=tls, ca_file=str(certificate.file))
        assert sent(target(**keys)) == Outcome("sent")
        assert len(server.got) == server.logins == 1
        wrong = {**keys["smtp"], "password_file": private(tmp_path / "wrong", f"{SECRET}x")}
        outcome = sent(target(smtp=wrong))
    assert outcome.state == "failed" and "535" in outcome.why and SECRET not in outcome.why
    assert len(server.got) == 1


@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest.mark.parametrize("fault", ["unknown", "of another host", "expired"])
def test_a_certificate_that_proves_nothing_is_refused(fault: str, tls: str, tmp_path: Path) -> None:
    host = "mail.example.org" if fault == "of another host" else "127.0.0.1"
    certificate = Certificate(tmp_path, host, is_expired=fault == "expired")
    with mail_server(password=SECRET, tls=tls, context=certificate.server_context()) as server:
        keys = {} if fault == "unknown" else {"ca_file": str(certificate.file)}
        outcome = sent(target(**mail(server, tmp_path, tls=tls, **keys)))
        assert not server.got and not server.logins
    words = {"unknown": "self-signed", "of another host": "127.0.0.1", "expired": "expired"}[fault]
    assert outcome.state == "failed" and "its certificate is refused" in outcome.why and words in outcome.why


def test_no_password_is_sent_to_a_server_that_offers_no_tls(tmp_path: Path) -> None:
    with mail_server(password=SECRET) as server:
        outcome = sent(target(**mail(server, tmp_path, tls="starttls")))
        assert outcome.state == "failed" and "STARTTLS" in outcome.why and "`tls`" in outcome.why
        outcome = sent(target(**mail(server, tmp_path, tls="tls")))
        assert outcome.state == "failed" and "no TLS" in outcome.why and "`tls`" in outcome.why
        assert not server.logins and not server.got


def test_a_server_that_wants_tls_says_so(tmp_path: Path) -> None:
    with mail_server(tls="starttls", context=Certificate(tmp_path).server_context()) as server:
        plain = {"host": "127.0.0.1", "port": server.port, "tls": "none", "from": "a@b.c", "to": "d@e.f"}
        outcome = sent(target(smtp=plain))
        assert outcome.state == "failed" and "530 Must issue a STARTTLS command first" in outcome.why
        assert not server.got
