"""What a dispatcher writes about its own time."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pod import session
from dispatcher.pod.session import Session
from dispatcher.run_state.journal import now_text


def test_every_drain_is_in_the_journal_not_only_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Any] = []

    @contextmanager
    def transaction() -> Any:
        yield SimpleNamespace(note=notes.append, at="end")

    info = SimpleNamespace(pod="a", started_at="begin", host="h", user="u", outlets={"local": {}}, methods=[], where=[])
    registration = SimpleNamespace(info=info, previous=None)
    options = SimpleNamespace(matrix=None, once=False)
    one = Session(cast(Any, SimpleNamespace(transaction=transaction)), cast(Any, registration), cast(Any, options))
    with transaction() as tx:
        one.begin(tx)
    for at_s, does in ((1, True), (2, False), (3, False), (5, True), (6, True), (7, False), (8, True), (9, False)):
        monkeypatch.setattr(session.time, "time", lambda at_s=at_s: float(at_s))
        one.claims(does)
    one.end()
    assert notes[-1].drained == ((now_text(2), now_text(5)), (now_text(7), now_text(8)))
    assert notes[-1].claimed_until == now_text(9)
