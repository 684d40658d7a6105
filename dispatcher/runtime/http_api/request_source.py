"""All requests of a job in order, each with the hash by which its answer is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dispatcher.errors import UsageError
from dispatcher.runtime.http_api.exchange import HttpRequest
from dispatcher.runtime.http_api.responses import Responses
from dispatcher.runtime.http_api.workers import Task

if TYPE_CHECKING:
    from dispatcher.runtime.training.data import Source


class RequestSource:
    """The requests that `make` makes of the bodies in `source`; UsageError for a body that is not JSON.

    The second of two identical requests has the hash `HASH-2`: each of them gets an answer of its own.
    """

    def __init__(self, source: Source, make: Callable[[Any], HttpRequest]) -> None:
        self._source = source
        self._make = make
        self.hashes: list[str] = []
        seen: Counter[str] = Counter()
        for index in range(len(source)):
            digest = self._digest(index)
            seen[digest] += 1
            self.hashes.append(digest if seen[digest] == 1 else f"{digest}-{seen[digest]}")

    def __len__(self) -> int:
        return len(self.hashes)

    def missing(self, responses: Responses) -> list[int]:
        """The indices of the requests that were not answered."""
        return [index for index, name in enumerate(self.hashes) if name not in responses]

    def tasks(self, indices: Iterable[int], headers: Callable[[str], Mapping[str, str]]) -> Iterator[Task]:
        """The requests `indices`, made as they are taken; `headers` returns those to add, by the request's hash."""
        for index in indices:
            name = self.hashes[index]
            yield Task(index, name, self._make(self._source[index]), headers(name))

    def _digest(self, index: int) -> str:
        request = self._make(self._source[index])
        try:
            return request.digest()
        except (TypeError, ValueError) as error:
            raise UsageError(f"request {index}: its body is not JSON: {error}: {request.body!r:.200}") from None
