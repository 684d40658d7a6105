"""The routes of the page and of its API."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dispatcher.errors import DispatcherError, LockError, StorageError, UsageError
from dispatcher.query.comparing import MOST_JOBS
from dispatcher.query.curves import STEP, WALL
from dispatcher.web import changing, comparing, curves, jobs, logs, matrix
from dispatcher.web.answers import MOST_BYTES, LoadingError, RefusedError, encode
from dispatcher.web.board import Board, FilterError
from dispatcher.web.follower import Follower
from dispatcher.web.guard import LOGIN, App, Guard, Receive, Scope, Send, Sessions
from dispatcher.web.ledger import Ledger
from dispatcher.web.pages import Pages
from dispatcher.web.queries import Query
from dispatcher.web.worker import Worker
from dispatcher.workspace import AttemptPaths

_FILTER: Final = ("where", "state", "methods", "failure", "waiting")
_JSON: Final = "application/json"
_BLOCK: Final = 256 * 1024
_LONGEST_BODY: Final = 1_000_000
_LONGEST_READ: Final = 10_000_000
_FILES_S: Final = 20.0
# A request reads metrics for so long; what is not read by then comes with the next one.
_READING_S: Final = 0.5
_WIDTHS: Final = (2, 4_000)
_X: Final = (STEP, WALL)
# Smaller answers are not worth compressing, and larger ones take longer at higher levels than a tunnel needs for them.
_WORTH_BYTES: Final = 2_000
_BIGGEST: Final = 1 << 53
_MOST: Final = 1_000_000_000
Endpoint = Callable[[Request], Awaitable[Response]]


class Server:
    """What answers the requests for one workspace."""

    def __init__(self, follower: Follower, sessions: Sessions, root: Path, *, allows_changes: bool) -> None:
        self._follower = follower
        self._sessions = sessions
        self._allows_changes = allows_changes
        self._files = Worker("files", threads=4)
        self._curves = Worker("curves")
        self._metric_files = curves.MetricFiles()
        self._changes = Worker("changes")
        self._changer = changing.Changer(root)
        self._pages = Pages()
        self._ledger = Ledger(follower, root)

    def app(self, let_in: Callable[[tuple[str, int]], object]) -> App:
        """The application, behind its guard; `let_in` gets the address of each client that has a session."""
        reading = {
            "/": self._page,
            "/static/{name:path}": self._static,
            "/api/overview": self._overview,
            "/api/changes": self._changes_since,
            "/api/matrix": self._matrix,
            "/api/jobs": self._jobs,
            "/api/jobs/{job}": self._job,
            "/api/jobs/{job}/log": self._log,
            "/api/jobs/{job}/log/download": self._download,
            "/api/jobs/{job}/metrics": self._metrics,
            "/api/compare": self._compare,
            "/api/scatter": self._scatter,
            "/api/parameters": self._parameters,
            "/api/pods": self._pods,
            "/api/values": self._values,
        }
        routes = [Route(LOGIN, self._login, methods=["GET"])]
        routes += [Route(path, self._answering(endpoint), methods=["GET"]) for path, endpoint in reading.items()]
        routes.append(Route("/api/changes/{name}", self._answering(self._change), methods=["POST"]))
        handlers: dict[Any, Any] = {HTTPException: _not_found, Exception: _fault}
        return Guard(
            Starlette(routes=routes, lifespan=self._life, exception_handlers=handlers), self._sessions, _refused, let_in
        )

    @contextlib.asynccontextmanager
    async def _life(self, _app: Starlette) -> AsyncIterator[None]:
        self._follower.start()
        self._ledger.start()
        try:
            yield
        finally:
            self._ledger.stop()
            self._follower.stop()

    def _answering(self, endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request)
            except DispatcherError as error:
                return self._error(error)

        return answer

    def _error(self, error: DispatcherError) -> Response:
        facts = {name: value for name, value in self._follower.facts().items() if name != "live"}
        if isinstance(error, LoadingError):
            return _json({"error": str(error), "loading": True, **facts}, _status(error), {"Retry-After": "1"})
        if isinstance(error, FilterError):
            facts["filter"] = {"name": error.name, "number": error.number}
        return _json({"error": str(error), **facts}, _status(error))

    # The page.

    async def _login(self, request: Request) -> Response:
        value = self._sessions.open(request.query_params.get("token", ""))
        if value is None:
            return _refusal_page(request, 401, "this link is of another start of the server: open the newest one")
        cookie = f"{self._sessions.cookie}={value}; Path=/; HttpOnly; SameSite=Strict"
        return Response(status_code=303, headers={"Location": "/", "Set-Cookie": cookie})

    async def _page(self, _request: Request) -> Response:
        return self._pages.page()

    async def _static(self, request: Request) -> Response:
        return self._pages.static(request.path_params["name"], request.headers.get("if-none-match"))

    # What changes and what there is.

    async def _overview(self, request: Request) -> Response:
        wanted = Query(request.query_params, *_FILTER).filter()
        return _encoded(request, await self._follower.answer(lambda board: board.overview(wanted)))

    async def _changes_since(self, request: Request) -> Response:
        query = Query(request.query_params, "since", *_FILTER)
        since, wanted = query.text("since") or "", query.filter()
        return _encoded(request, await self._follower.changes(since, lambda board: board.changes(since, wanted)))

    async def _matrix(self, request: Request) -> Response:
        query = Query(request.query_params, "rows", "columns", "value", "from", *_FILTER)
        rows, columns, value = query.texts("rows"), query.texts("columns"), query.text("value")
        wanted, first = query.filter(), query.count("from", 0, (0, _MOST))
        return _encoded(
            request,
            await self._follower.answer(lambda board: matrix.matrix(board, rows, columns, value, wanted, first)),
        )

    async def _jobs(self, request: Request) -> Response:
        query = Query(request.query_params, "sort", "limit", "after", "ids", "show", *_FILTER)
        limit, after = query.count("limit", 100, (1, jobs.MOST_JOBS)), query.count("after", 0, (0, _MOST))
        wanted, sort, ids, show = query.filter(), query.text("sort"), query.words("ids"), query.texts("show")
        if len(ids) > jobs.MOST_JOBS:
            raise UsageError(f"ids: {len(ids)} jobs, at most {jobs.MOST_JOBS}")

        def find(board: Board) -> dict[str, Any]:
            return jobs.rows_of(board, ids) if ids else jobs.listed(board, wanted, sort, limit, after, show)

        return _encoded(request, await self._follower.answer(find))

    async def _job(self, request: Request) -> Response:
        Query(request.query_params)
        name = request.path_params["job"]
        return _encoded(request, await self._follower.answer(lambda board: jobs.one(board, jobs.known(board, name))))

    async def _pods(self, request: Request) -> Response:
        Query(request.query_params)
        return _encoded(request, await self._follower.answer(lambda board: board.pods()))

    async def _values(self, request: Request) -> Response:
        query = Query(request.query_params, "key", "text")
        key, text = query.text("key"), query.text("text") or ""
        return _encoded(request, await self._follower.answer(jobs.values, key, text))

    # Files of attempts.

    async def _log(self, request: Request) -> Response:
        query = Query(request.query_params, "attempt", "before", "from", "bytes")
        size = query.count("bytes", 65536, (1, logs.MOST_BYTES))
        start, before = query.number("from", None, (0, _BIGGEST)), query.number("before", None, (0, _BIGGEST))
        number, paths = await self._attempt(request, query)

        def read() -> dict[str, Any]:
            try:
                return logs.part(paths, start=start, before=before, size=size)
            except FileNotFoundError:
                return logs.missing(paths)

        found = await self._read(read)
        return _encoded(request, encode({**self._follower.facts(), "attempt": number, **found}))

    async def _download(self, request: Request) -> Response:
        number, paths = await self._attempt(request, Query(request.query_params, "attempt"))

        def open_it() -> Any:
            try:
                return logs.open_log(paths.log)
            except FileNotFoundError:
                raise RefusedError(404, f"{paths.log}: there is no log") from None

        file = await self._read(open_it)

        async def blocks() -> AsyncIterator[bytes]:
            with file:
                # As long as it is now: the log of a running job would never end.
                left = os.fstat(file.fileno()).st_size
                while left > 0:
                    block = await self._read(functools.partial(file.read, min(_BLOCK, left)))
                    if not block:
                        break
                    left -= len(block)
                    yield block

        name = f"{request.path_params['job']}.{number}.log"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(blocks(), media_type="application/octet-stream", headers=headers)

    async def _metrics(self, request: Request) -> Response:
        query = Query(request.query_params, "attempt", "width", "names", "x")
        width, names, x = query.count("width", 600, _WIDTHS), query.words("names"), query.one_of("x", _X)
        number, paths = await self._attempt(request, query)

        def read() -> dict[str, Any]:
            file = self._metric_files.read(paths.directory, time.monotonic() + _READING_S)
            return curves.curves(file, width, names, x)

        found = await self._read(read, self._curves)
        return _encoded(request, encode({**self._follower.facts(), "attempt": number, **found}))

    async def _compare(self, request: Request) -> Response:
        query = Query(request.query_params, "jobs", "metric", "by", "x", "from", "width", *_FILTER)
        ids, metric, by, x = query.words("jobs"), query.text("metric"), query.texts("by"), query.one_of("x", _X)
        first = query.count("from", 0, (0, _MOST))
        wanted, width = query.filter(), query.count("width", 300, _WIDTHS)
        if len(ids) > MOST_JOBS:
            raise UsageError(f"jobs: {len(ids)} ids, at most {MOST_JOBS}")
        chosen = await self._follower.ask(comparing.choose, ids, wanted, by, first)
        until_s = time.monotonic() + _READING_S

        def read() -> dict[str, Any]:
            return comparing.compare(self._metric_files, chosen, metric, x, width, until_s)

        found = await self._read(read, self._curves)
        return _encoded(request, encode({**self._follower.facts(), **found}))

    async def _scatter(self, request: Request) -> Response:
        query = Query(request.query_params, "x", "y", *_FILTER)
        x, y, wanted = query.text("x"), query.text("y"), query.filter()
        if x is None or y is None:
            raise UsageError("x and y are needed: x=KEY, a parameter or a result, and y=RESULT")
        return _encoded(request, await self._follower.answer(comparing.scatter, x, y, wanted))

    async def _parameters(self, request: Request) -> Response:
        query = Query(request.query_params, "y", *_FILTER)
        y, wanted = query.text("y"), query.filter()
        if y is None:
            raise UsageError("y is needed: y=RESULT")
        return _encoded(request, await self._follower.answer(comparing.parameters, y, wanted))

    async def _attempt(self, request: Request, query: Query) -> tuple[int, AttemptPaths]:
        """The number and the paths of the attempt that was asked for. The names come from the records alone."""
        job, number = request.path_params["job"], query.number("attempt", None, (1, 10**9))

        def find(board: Board) -> tuple[int, AttemptPaths]:
            found = jobs.attempt_of(board, job, number)
            return found, board.layout.attempt(job, found)

        return await self._follower.ask(find)

    async def _read(self, function: Callable[[], Any], worker: Worker | None = None) -> Any:
        try:
            return await (worker or self._files).run(function, timeout_s=_FILES_S)
        except TimeoutError:
            raise RefusedError(
                503, f"the file does not answer for {_FILES_S:.0f} s: is the file server there?"
            ) from None
        except OSError as error:
            raise RefusedError(
                503, f"{error.filename or 'a file of the attempt'} cannot be read: {error.strerror}"
            ) from None

    # Changes.

    async def _change(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in changing.NAMES:
            raise RefusedError(404, f"unknown change {name[:50]!r}: expected {', '.join(changing.NAMES)}")
        if not self._allows_changes:
            raise RefusedError(403, "this page is read-only: start it with `dispatcher web --allow-changes`")
        asked = changing.parse(await _body(request))
        found = await self._changes.run(self._changer.change, name, asked)
        self._follower.look_soon()
        return _json(found)


def _status(error: DispatcherError) -> int:
    if isinstance(error, RefusedError):
        return error.status
    if isinstance(error, UsageError):
        return 400
    return 503 if isinstance(error, (LockError, StorageError)) else 409


async def _body(request: Request) -> bytes:
    body, length = b"", 0
    async for block in request.stream():
        length += len(block)
        # Who sends too much must still be able to read that; who does not stop is cut off.
        if length > _LONGEST_READ:
            break
        body = body + block if length <= _LONGEST_BODY else b""
    if length > _LONGEST_BODY:
        raise RefusedError(413, f"the body has more than {_LONGEST_BODY} bytes")
    return body


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, media_type=_JSON)


def _encoded(request: Request, data: bytes) -> Response:
    if len(data) > MOST_BYTES:
        raise RefusedError(413, f"{len(data)} bytes to show, at most {MOST_BYTES}: use a filter or a smaller limit")
    if len(data) > _WORTH_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(gzip.compress(data, compresslevel=1), media_type=_JSON, headers=headers)
    return Response(data, media_type=_JSON)


def _refused(error: RefusedError) -> App:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await _refusal_page(Request(scope), error.status, str(error))(scope, receive, send)

    return answer


def _refusal_page(request: Request, status: int, text: str) -> Response:
    """JSON for scripts, a line of HTML for people."""
    if request.url.path.startswith("/api/"):
        return _json({"error": text}, status)
    return Pages.refusal(status, text)


async def _not_found(request: Request, error: HTTPException) -> Response:
    texts = {404: f"there is no {request.url.path[:200]}", 405: f"{request.method} is not possible here"}
    response = _refusal_page(request, error.status_code, texts.get(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    return response


async def _fault(request: Request, error: Exception) -> Response:
    return _refusal_page(
        request, 500, f"a fault of the server, which its terminal shows: {type(error).__name__}: {error}"
    )
