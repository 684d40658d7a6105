"""Sends requests, several at a time, tries again, and records what was answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dispatcher.errors import RequestError
from dispatcher.runtime.http_api.config import ApiConfig
from dispatcher.runtime.http_api.exchange import Client, HttpRequest, HttpResponse, IncompleteExchangeError
from dispatcher.runtime.http_api.key import ApiKey
from dispatcher.runtime.http_api.pace import Pace, is_set_within
from dispatcher.runtime.http_api.responses import Answer
from dispatcher.runtime.http_api.verdict import ResponseKind, Verdict, backoff_s, judge

# A `fault` or `parse` of the user's that hangs cannot be broken off.
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
    """What this run has done so far."""

    answered: int = 0
    refused: int = 0
    retries: int = 0
    # Seconds of all exchanges that ended with an answer.
    exchange_s: float = 0.0


class Workers:
    """Works off `tasks`, `config.concurrency` at a time, in an event loop that runs in a thread of its own.

    `fault` says why a response of status 200 is no answer, or None. `record` saves an answer before the next request is
    sent. Both, and `tasks`, are called in further threads, `tasks` in one at a time. After the first error nothing more
    is sent, what is in flight is received and recorded, and `check` raises the error.
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
        self._client = Client(config)
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_DaemonThreads())
        self._stop = asyncio.Event()
        self._pace = Pace(config.requests_per_minute, self._stop)
        self._taking = asyncio.Lock()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more; what is in flight goes on."""
        self._call(self._stop.set)

    def wait(self, timeout_s: float) -> bool:
        """Wait until all has ended, at most `timeout_s`; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def abort(self) -> None:
        """Break off what is in flight, and wait until what was received is recorded."""
        self.stop()
        self._call(self._client.abort)
        if self._thread.ident is not None:
            self._thread.join(_ABORT_TIMEOUT_S)

    def check(self) -> None:
        """Raise the first error, if there is one."""
        if self._error is not None:
            raise self._error

    def _call(self, function: Callable[[], None]) -> None:
        # The loop is closed when all requests are answered.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._work_all())
        except BaseException as error:  # noqa: BLE001  # `check` raises it in the main thread
            self._error = self._error or error
        finally:
            self._loop.close()

    async def _work_all(self) -> None:
        async with self._client:
            await asyncio.gather(*(self._work() for _ in range(self._config.concurrency)))

    async def _work(self) -> None:
        try:
            while (task := await self._take()) is not None:
                await self._answer(task)
        except BaseException as error:  # noqa: BLE001  # `check` raises it in the main thread
            self._error = self._error or error
            self._stop.set()

    async def _take(self) -> Task | None:
        async with self._taking:
            return None if self._stop.is_set() else await asyncio.to_thread(next, self._tasks, None)

    async def _answer(self, task: Task) -> None:
        """Send the task's request until it is answered, refused, or not to be tried again."""
        failures = 0
        while await self._pace.wait():
            verdict = await self._send(task)
            if verdict.kind is not ResponseKind.MAY_PASS:
                await self._conclude(task, verdict)
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
            self.counts.retries += 1
            if await is_set_within(self._stop, delay_s):
                return

    async def _send(self, task: Task) -> Verdict:
        began_s = time.monotonic()
        try:
            response = await self._client.post(task.request, task.headers)
        except IncompleteExchangeError as error:
            return Verdict(ResponseKind.MAY_PASS, reason=self._key.hidden(str(error)))
        verdict = await asyncio.to_thread(self._judged, task, response)
        if verdict.kind is ResponseKind.ANSWERED:
            self.counts.exchange_s += time.monotonic() - began_s
        return verdict

    def _judged(self, task: Task, response: HttpResponse) -> Verdict:
        """The verdict on a response, without the key."""
        hidden = self._key.hidden
        # Also before it is quoted: what is cut off at some length may end within the key.
        found = judge(replace(response, body=hidden(response.body)))
        verdict = replace(found, answer=hidden(found.answer), reason=hidden(found.reason))
        if verdict.kind is ResponseKind.ANSWERED and (reason := self._fault_of(task, verdict.answer)) is not None:
            return Verdict(ResponseKind.MAY_PASS, reason=f"HTTP 200, but no answer: {reason}")
        return verdict

    def _fault_of(self, task: Task, answer: Any) -> str | None:
        try:
            return self._fault(answer)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # A mistake in the user's code is no reason to ask, and to pay, again.
            self._record(task, Answer(answer))
            reason = f"its response is saved, but `fault` fails on it: {type(error).__name__}: {error}"
            raise RequestError(_message(task, reason, "correct `fault` and start the job again")) from error

    async def _conclude(self, task: Task, verdict: Verdict) -> None:
        if verdict.kind is ResponseKind.ANSWERED:
            await asyncio.to_thread(self._record, task, Answer(verdict.answer))
            self.counts.answered += 1
        elif verdict.kind is ResponseKind.REFUSED and self._config.on_error == "record":
            await asyncio.to_thread(self._record, task, Answer(error=verdict.reason))
            self.counts.refused += 1
        else:
            raise RequestError(_message(task, verdict.reason, _ADVICE[verdict.kind]))

    def _give_up(self, task: Task, reason: str) -> None:
        if self._config.on_error == "stop":
            raise RequestError(_message(task, reason, _ADVICE[ResponseKind.MAY_PASS]))
        self.unanswered[task.index] = reason


class _DaemonThreads(ThreadPoolExecutor):
    """A thread for each call, which does not keep the process from exiting: one may hang in a name server."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # it is raised where the future is awaited
                future.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        return future


_ADVICE: Mapping[ResponseKind, str] = {
    ResponseKind.MAY_PASS: "start the job again when the API answers",
    ResponseKind.REFUSED: "correct this request, or set api.on_error: record to go on without it",
    ResponseKind.OF_THE_JOB: "every request would get the same: correct the key, the account or api.url",
}


def _message(task: Task, reason: str, advice: str) -> str:
    body: Any = task.request.body
    return (
        f"request {task.index} to {task.request.url} failed: {reason}\n  its body: {body!r:.200}\n  {advice}. "
        "Requests that were answered are not sent again"
    )
