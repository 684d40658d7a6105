"""ApiRollouts: asks a model behind HTTP, each request once."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from dispatcher import contract
from dispatcher.checkpoints.fence import Run
from dispatcher.errors import RequestError, UsageError
from dispatcher.runtime.configuration import configure
from dispatcher.runtime.execution import ExecutionSpec
from dispatcher.runtime.http_api.completion import OUTCOME, Outcome, OutcomeCounts, row_of
from dispatcher.runtime.http_api.config import ApiConfig
from dispatcher.runtime.http_api.exchange import LOCAL_HOSTS, HttpRequest
from dispatcher.runtime.http_api.key import ApiKey, read_key
from dispatcher.runtime.http_api.monitor import Monitor
from dispatcher.runtime.http_api.open_files import allow_connections
from dispatcher.runtime.http_api.request_source import RequestSource
from dispatcher.runtime.http_api.responses import FOLDER, Answer, Responses, json_line
from dispatcher.runtime.http_api.workers import Task, Workers
from dispatcher.runtime.jobs.basic import BasicJob, Row
from dispatcher.runtime.metrics import MetricsLog
from dispatcher.runtime.preemption import SAVE_TIMEOUT_S, notifying, watch

if TYPE_CHECKING:
    from dispatcher.runtime.training.data import Source

C = TypeVar("C")

ROWS_FILE: Final = "rows.jsonl"
_MOST_QUOTED: Final = 300

_log = logging.getLogger(__name__)


class ApiRollouts(BasicJob[C], Generic[C]):
    """A job that sends requests to a model behind HTTP. The user writes `config` and `requests`:

        @job("lab/riddles")
        class Riddles(ApiRollouts[RiddlesConfig]):
            @classmethod
            def config(cls):
                return RiddlesConfig

            def requests(self):
                return [{"messages": [{"role": "user", "content": text}]} for text in self.args.riddles]

    The API is configured by `api` (ApiConfig). Responses are saved as they come, and a request that was answered is
    never sent again: after a kill or a preemption the next attempt sends the rest. Other hooks, each with a default for
    OpenAI-compatible chat completions: `request`, `authorization`, `fault`, `parse`, `failed`, `result`.
    `requests()[index]` and `request` are called by one thread at a time, not always the main one.
    """

    # Seconds in which requests in flight may end after a preemption; four fifths of kill_grace if that is less.
    PREEMPTION_TIMEOUT_S: float = SAVE_TIMEOUT_S

    def __init__(self, spec: ExecutionSpec) -> None:
        super().__init__(spec)
        if spec.distributed:
            raise UsageError(
                f"{spec.name}: {spec.hardware.processes} processes: a job that sends requests has one; "
                "api.concurrency says how many are in flight"
            )
        self.api = configure(ApiConfig)
        # The number of requests that were refused or not answered: known when `result` is called.
        self.failures = 0

    @classmethod
    def config_classes(cls) -> tuple[type[Any], ...]:
        return tuple(dict.fromkeys((*super().config_classes(), ApiConfig)))

    @abstractmethod
    def requests(self) -> Source:
        """The bodies of all requests, by index: a list, or anything with `len` and `[index]`.

        They must be the same in every attempt; one that differs is another request.
        """

    def request(self, body: Any) -> HttpRequest:
        """The request with the body `body`, without the key: a chat completion of `api.model` by default."""
        model = {} if self.api.model is None else {"model": self.api.model}
        url = urlsplit(self.api.url)
        # Before a query such as Azure's ?api-version=...
        url = url._replace(path=f"{url.path.rstrip('/')}/chat/completions")
        return HttpRequest(url.geturl(), {**model, **self.api.parameters, **body}, self.api.headers)

    def authorization(self, key: str) -> Mapping[str, str]:
        """The headers that carry the API key."""
        return {"Authorization": f"Bearer {key}"}

    def fault(self, response: Any) -> str | None:
        """Why a response of status 200 is no answer, so that its request is tried again; None if it is one.

        By default the `error` that some APIs send with status 200, or that there is no choice for the default `parse`.
        Called by all threads.
        """
        error = response.get("error") if isinstance(response, dict) else None
        if error is not None:
            return json.dumps(error, ensure_ascii=False)[:_MOST_QUOTED]
        if type(self).parse is ApiRollouts.parse and _lacks_choices(response):
            return f"it has no choices: {response!r:.{_MOST_QUOTED}}"
        return None

    def parse(self, response: Any) -> Any:
        """The row of a response, the JSON of its body: by default `text`, `finish_reason` and `outcome` of its first
        choice, its `tool_calls` and `refusal`, and `further_choices` (http_api.completion).

        It is tried on the first response of a run, so that a mistake in it does not cost all requests.
        """
        return row_of(response)

    def failed(self, error: str) -> Any:
        """The row of a request that was refused, or not answered after all retries; with `api.on_error: record`."""
        return {"error": error, OUTCOME: Outcome.FAILED.value}

    def result(self, rows: Iterable[Any]) -> Row | None:
        """Called with one row per request, in order, read from the disk as they are taken; the job's row of results.

        By default the rows are written to rows.jsonl and counted by what became of the requests.
        """
        return self.write_rows(ROWS_FILE, rows)

    def write_rows(self, name: str, rows: Iterable[Any], *, merged: Callable[[Any], Any] | None = None) -> Row:
        """Write the rows, or what `merged` makes of each, to a file of the results, a line each.

        The row of results says how many are answers, and what the others are.
        """
        tally = OutcomeCounts()
        with self.spec.result(name) as file:
            assert file is not None, "there is one process"
            for row in tally.counted(rows):
                file.write(json_line(row if merged is None else merged(row)))
        others = tally.incomplete()
        if others:
            _log.warning("%s: some responses are no complete answers: %s", self.spec.name, others)
        return tally.row(self.failures)

    def run(self) -> Row | None:
        key = read_key(self.api)
        self._warn_of_plain_http(key)
        source = RequestSource(self.requests(), self.request)
        with Responses(self.spec.result_path(FOLDER)) as responses:
            unanswered = self._send_missing(source, responses, key)
            Run.current().check("the results are not written")
            self.failures = len(unanswered) + sum(map(responses.is_refused, source.hashes))
            return self.result(self._rows(source, responses, unanswered))

    def _run_once(self) -> Row | None:
        with watch() as self._preemption:
            return super()._run_once()

    def _warn_of_plain_http(self, key: ApiKey) -> None:
        parts = urlsplit(self.api.url)
        if key.value and parts.scheme == "http" and parts.hostname not in LOCAL_HOSTS:
            _log.warning("%s: the API key is sent without encryption: use https if the API has it", self.api.url)

    def _send_missing(self, source: RequestSource, responses: Responses, key: ApiKey) -> dict[int, str]:
        """Send what was not answered; exits with 75 on a preemption, unless all were answered in time.

        Returns why requests have no answer, by index.
        """
        missing = source.missing(responses)
        before = len(source) - len(missing)
        _log.info("%s: %d of %d requests are answered", self.spec.name, before, len(source))
        if not missing:
            return {}
        allow_connections(self.api.concurrency)
        responses.begin()
        tasks = source.tasks(missing, self._headers(key))
        workers = Workers(self.api, key, tasks, fault=self.fault, record=self._recorder(responses))
        self._send(workers, before, len(source))
        left = len(missing) - workers.counts.answered - workers.counts.refused - len(workers.unanswered)
        if left:
            _log.info("preempted: %d requests are left for the next attempt", left)
            raise SystemExit(contract.EXIT_PREEMPTED)
        return workers.unanswered

    def _send(self, workers: Workers, before: int, of: int) -> None:
        self._preemption.defer_exit(self.PREEMPTION_TIMEOUT_S)
        with MetricsLog.of(self.spec, resumed_step=before) as log, notifying(workers.stop):
            if self._preemption.requested:
                workers.stop()
            try:
                workers.start()
                Monitor(workers, log, before=before, of=of).watch()
            finally:
                workers.abort()
        workers.check()

    def _headers(self, key: ApiKey) -> Callable[[str], Mapping[str, str]]:
        """What is sent in addition to a request's own headers, by the request's hash."""
        secret = self.authorization(key.value) if key.value else {}
        name = self.api.idempotency_header
        # Another job that sends the same request wants an answer of its own.
        place = str(self.spec.relative_path).encode()

        def headers(request: str) -> Mapping[str, str]:
            own = hashlib.sha256(place + b"\0" + request.encode()).hexdigest()
            return {**({name: own} if name else {}), **secret}

        return headers

    def _recorder(self, responses: Responses) -> Callable[[Task, Answer], None]:
        """Saves answers, and tries `parse` on the first response."""
        tried = threading.Event()

        def record(task: Task, answer: Answer) -> None:
            responses.add(task.index, task.hash, answer)
            if answer.error is None and not tried.is_set():
                tried.set()
                self._parsed(task.index, answer.response, responses.path_of(task.hash))

        return record

    def _rows(self, source: RequestSource, responses: Responses, unanswered: Mapping[int, str]) -> Iterator[Any]:
        for index, name in enumerate(source.hashes):
            answer = responses.get(name) or Answer(error=unanswered[index])
            if answer.error is None:
                yield self._parsed(index, answer.response, responses.path_of(name))
            else:
                yield self.failed(answer.error)

    def _parsed(self, index: int, response: Any, saved: Path) -> Any:
        try:
            return self.parse(response)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RequestError(
                f"the response to request {index} is saved, but {type(self).__qualname__}.parse fails on it: "
                f"{type(error).__name__}: {error}\n  the response: {response!r:.300}\n"
                "  correct parse and start the job again: nothing that was answered is sent again. To ask for this one "
                f'again, remove the line with "index": {index} from {saved}'
            ) from error


def _lacks_choices(response: Any) -> bool:
    """Whether it is nothing, or a completion without any choice; a response of another form is left to `parse`."""
    return response is None or (isinstance(response, dict) and "choices" in response and not response["choices"])
