"""Threads that send requests, try again, and record what was answered."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dispatcher.errors import RequestError
from dispatcher.runtime.http_api.config import ApiConfig
from dispatcher.runtime.http_api.exchange import Connection, HttpRequest, HttpResponse, IncompleteExchangeError
from dispatcher.runtime.http_api.key import ApiKey
from dispatcher.runtime.http_api.pace import Pace
from dispatcher.runtime.http_api.responses import Answer
from dispatcher.runtime.http_api.verdict import Kind, Verdict, backoff_s, judge

# A thread that waits for a name server cannot be broken off.
_ABORT_TIMEOUT_S: Final = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A request to be answered: its index, its hash, and the headers that are not part of the hash."""

    index: int
    hash: str
    request: HttpRequest
    headers: Mapping[str, str] = field(repr=False)


@dataclass
class Counts:
    """What the threads of this run have done so far."""

    answered: int = 0
    refused: int = 0
    retries: int = 0
    # Seconds of all exchanges that ended with an answer.
    exchange_s: float = 0.0


class Workers:
    """`config.concurrency` threads that work off `tasks`, an iterator that only one of them uses at a time.

    `fault` says why a response of status 200 is no answer, or None. `record` saves an answer before the next request is
    sent. The first error stops all threads: nothing more is sent, what is in flight is received and recorded, and
    `check` raises the error.
    """

    def __init__(
        self,
        config: ApiConfig,
        key: ApiKey,
        tasks: Iterator[Task],
        *,
        fault: Callable[[Any], str | None],
        record: Callable[[Task, Answer], None],
    ) -> None:
        self.counts = Counts()
        # By index, the requests without an answer after all retries; only with `on_error: record`.
        self.unanswered: dict[int, str] = {}
        self._config = config
        self._key = key
        self._tasks = tasks
        self._fault = fault
        self._record = record
        self._stop = threading.Event()
        self._pace = Pace(config.requests_per_minute, self._stop)
        self._taking = threading.Lock()
        self._counting = threading.Lock()
        self._error: BaseException | None = None
        self._connections = [Connection(config.timeout_s) for _ in range(config.concurrency)]
        # A daemon: one that hangs in a name server must not keep the process from exiting.
        self._threads = [
            threading.Thread(target=self._work, args=(connection,), name=f"request-{number}", daemon=True)
            for number, connection in enumerate(self._connections)
        ]

    def start(self) -> None:
        """Begin to send."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send nothing more; what is in flight goes on."""
        self._stop.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all threads have ended, at most `timeout_s`; whether they have. Ends overdue exchanges."""
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        for connection in self._connections:
            connection.expire(time.monotonic())
        return not any(thread.is_alive() for thread in self._threads)

    def abort(self) -> None:
        """Break off what is in flight, and wait for the threads."""
        self._stop.set()
        for connection in self._connections:
            connection.abort()
        until_s = time.monotonic() + _ABORT_TIMEOUT_S
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))

    def check(self) -> None:
        """Raise the first error of a thread, if there is one."""
        if self._error is not None:
            raise self._error

    def _work(self, connection: Connection) -> None:
        try:
            while (task := self._take()) is not None:
                self._answer(connection, task)
        except BaseException as error:  # noqa: BLE001  # `check` raises it in the main thread
            with self._counting:
                self._error = self._error or error
            self._stop.set()
        finally:
            connection.close()

    def _take(self) -> Task | None:
        with self._taking:
            return None if self._stop.is_set() else next(self._tasks, None)

    def _answer(self, connection: Connection, task: Task) -> None:
        """Send the task's request until it is answered, refused, or not to be tried again."""
        failures = 0
        while self._pace.wait():
            verdict = self._send(connection, task)
            if verdict.kind is not Kind.MAY_PASS:
                self._conclude(task, verdict)
                return
            if self._stop.is_set():
                # Not given up: the next attempt sends it.
                return
            failures += 1
            if failures > self._config.retries:
                self._give_up(task, f"{verdict.reason} (tried {failures} times)")
                return
            pause_s = verdict.pause_s
            if pause_s is not None:
                self._pace.pause(pause_s)
            delay_s = max(backoff_s(self._config, failures), pause_s or 0.0)
            _log.info("request %d: %s: again in %.1f s", task.index, verdict.reason, delay_s)
            with self._counting:
                self.counts.retries += 1
            if self._stop.wait(delay_s):
                return

    def _send(self, connection: Connection, task: Task) -> Verdict:
        began_s = time.monotonic()
        try:
            response = connection.post(task.request, task.headers)
        except IncompleteExchangeError as error:
            return Verdict(Kind.MAY_PASS, reason=self._key.hidden(str(error)))
        verdict = self._judged(task, response)
        if verdict.kind is Kind.ANSWERED:
            with self._counting:
                self.counts.exchange_s += time.monotonic() - began_s
        return verdict

    def _judged(self, task: Task, response: HttpResponse) -> Verdict:
        """The verdict on a response, without the key."""
        hidden = self._key.hidden
        # Also before it is quoted: what is cut off at some length may end within the key.
        found = judge(replace(response, body=hidden(response.body)))
        verdict = replace(found, answer=hidden(found.answer), reason=hidden(found.reason))
        if verdict.kind is Kind.ANSWERED and (reason := self._fault_of(task, verdict.answer)) is not None:
            return Verdict(Kind.MAY_PASS, reason=f"HTTP 200, but no answer: {reason}")
        return verdict

    def _fault_of(self, task: Task, answer: Any) -> str | None:
        try:
            return self._fault(answer)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # A mistake in the user's code is no reason to ask, and to pay, again.
            self._record(task, Answer(answer))
            reason = f"its response is saved, but `fault` fails on it: {type(error).__name__}: {error}"
            raise RequestError(_message(task, reason, "correct `fault` and start the job again")) from error

    def _conclude(self, task: Task, verdict: Verdict) -> None:
        if verdict.kind is Kind.ANSWERED:
            self._record(task, Answer(verdict.answer))
            with self._counting:
                self.counts.answered += 1
        elif verdict.kind is Kind.REFUSED and self._config.on_error == "record":
            self._record(task, Answer(error=verdict.reason))
            with self._counting:
                self.counts.refused += 1
        else:
            raise RequestError(_message(task, verdict.reason, _ADVICE[verdict.kind]))

    def _give_up(self, task: Task, reason: str) -> None:
        if self._config.on_error == "stop":
            raise RequestError(_message(task, reason, _ADVICE[Kind.MAY_PASS]))
        with self._counting:
            self.unanswered[task.index] = reason


_ADVICE: Mapping[Kind, str] = {
    Kind.MAY_PASS: "start the job again when the API answers",
    Kind.REFUSED: "correct this request, or set api.on_error: record to go on without it",
    Kind.OF_THE_JOB: "every request would get the same: correct the key, the account or api.url",
}


def _message(task: Task, reason: str, advice: str) -> str:
    body: Any = task.request.body
    return (
        f"request {task.index} to {task.request.url} failed: {reason}\n  its body: {body!r:.200}\n  {advice}. "
        "Requests that were answered are not sent again"
    )
