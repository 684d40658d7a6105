"""The transport to all workers of a TPU VM, through gcloud: together they answer as one host.

A call is one `gcloud compute tpus tpu-vm ssh --worker=all`: each worker runs the agent, gcloud keeps what each has
printed in a file of its own, and the answers are merged (merging.py). So nothing of one worker is mixed with that of
another, whatever it prints and however long its answer is. Requests that may hold a secret, such as an attempt's
environment, and those that are too large for an argument go ahead by scp, as do archives of code.

A launch takes three calls more: the VM is described, because the processes of the attempt need the addresses of its
workers; then worker 0 alone launches, which takes the lock of the VM; and only if it has got that, all do. So of two
dispatchers one gets the whole VM.

What fails is no answer, and says nothing about attempts: `gcloud describe` shows whether the VM is gone.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.base import temporary
from dispatcher.base.programs import Finished
from dispatcher.errors import OutletError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote import follow
from dispatcher.outlets.remote.exchange import Exchange, Talk, nothing
from dispatcher.outlets.remote.operations import (
    Check,
    Deliver,
    Has,
    Hello,
    Launch,
    Operation,
    Read,
    Signal,
    Store,
    Tail,
    Write,
)
from dispatcher.outlets.remote.programs import Program, ran
from dispatcher.outlets.tpu import gcloud, merging, reaching, telling
from dispatcher.outlets.tpu.gcloud import Vm

# What an attempt of any user on a VM keeps locked; on a filesystem that is never cleaned up by age.
EXCLUSIVE: Final = "/run/lock/dispatcher-tpu"
_DESCRIBE_LIMIT_S: Final = 30.0
# In what these tell and ask there is no secret.
_OPEN: Final = (Hello, Read, Tail, Check, Has, Signal, Write)
_DIRECTORY: Final = "dispatcher-tpu-"
_LOG: Final = re.compile(r"([0-9]+)\.log", re.ASCII)

_Answers = list[Sequence[Any]]


class _WorkerLog:
    """The way to the logs on one worker, by its index."""

    def __init__(self, host: TpuHost, index: int) -> None:
        self._host = host
        self._index = index

    def reach(self, timeout_s: float) -> Talk:
        return nothing()

    def follow_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return self._words(follow.follow_command(directory, offset, name))

    def rest_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return self._words(follow.rest_command(directory, offset, name))

    def close(self) -> None:
        """It keeps nothing open."""

    def _words(self, command: list[str]) -> list[str]:
        return reaching.ssh_words(self._host, str(self._index), reaching.command_once(secrets.token_hex(8), command))


class WorkersTransport:
    """All workers of a TPU VM.

    A call without a large file may take `call_limit_s`; gcloud would try for longer to reach a worker that is down.
    """

    def __init__(self, host: TpuHost, call_limit_s: float = 45.0) -> None:
        self._host = host
        self._call_limit_s = call_limit_s
        self._first_log = _WorkerLog(host, 0)
        # A request may hold secrets, also where no further call is made.
        temporary.remove_leftovers(tempfile.gettempdir(), _DIRECTORY, shutil.rmtree, older_than_s=temporary.OLD_S)
        self.sent_bytes = 0

    def talk(self, operations: Sequence[Operation], timeout_s: float) -> Talk:
        # An upload has a limit of its own, by its size.
        limit_s = timeout_s if any(isinstance(one, Store) for one in operations) else min(timeout_s, self._call_limit_s)
        if any(isinstance(operation, Launch) for operation in operations):
            return (yield from self._launching(operations, limit_s))
        answers = yield from self._ask(operations, reaching.ALL, limit_s)
        yield from self._stop(merging.to_be_stopped(operations, answers), limit_s, force=False)
        return merging.merged(operations, answers)

    def failed(self, *, another_runs: bool) -> None:
        """No connection is kept between calls."""

    def reach(self, timeout_s: float) -> Talk:
        addresses = yield from self._addresses(min(timeout_s, _DESCRIBE_LIMIT_S))
        return [_WorkerLog(self._host, index) for index in range(len(addresses))] if len(addresses) > 1 else ()

    def follow_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return self._first_log.follow_words(directory, offset, name)

    def rest_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return self._first_log.rest_words(directory, offset, name)

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _launching(self, operations: Sequence[Operation], limit_s: float) -> Talk:
        """All of it on worker 0, and then on all what it has not refused: whatever is done twice is done once."""
        vm = yield from self._vm(_DESCRIBE_LIMIT_S)
        if problem := telling.other_size(self._host, vm):
            # It was made since it was looked at.
            raise OutletError(problem)
        addresses = _addresses_of(vm)
        wanted = [
            msgspec.structs.replace(one, workers=addresses) if isinstance(one, Launch) else one for one in operations
        ]
        ((*first,),) = yield from self._ask(wanted, "0", limit_s)
        refused = [isinstance(one, Launch) and not merging.has_room(first[at]) for at, one in enumerate(wanted)]
        if len(addresses) == 1 or all(refused):
            return first
        # A question for nothing stands in the place of what worker 0 has refused.
        asked = [Has(paths=()) if refused[at] else one for at, one in enumerate(wanted)]
        answers = yield from self._ask(asked, reaching.ALL, limit_s)
        # What worker 0 has done the first time it only finds done the second time.
        done = [isinstance(one, (Deliver, Write, Launch)) for one in asked]
        answers[0] = [first[at] if done[at] else answer for at, answer in enumerate(answers[0])]
        yield from self._stop(merging.half_started(asked, answers), limit_s, force=True)
        merged = merging.merged(asked, answers)
        return [first[at] if refused[at] else answer for at, answer in enumerate(merged)]

    def _addresses(self, limit_s: float) -> Generator[Program, Finished, list[list[str]]]:
        return _addresses_of((yield from self._vm(limit_s)))

    def _vm(self, limit_s: float) -> Generator[Program, Finished, Vm]:
        """The VM as it is now, with addresses."""
        finished = yield Program(gcloud.describe(self._host), limit_s=limit_s, environment=reaching.environment())
        answer = ran(finished)
        vm = gcloud.read_vm(answer)
        if vm is None:
            raise OutletError(f"{self._host.name}: {gcloud.message(answer.err)}")
        if not vm.workers:
            raise OutletError(f"{self._host.name} is {vm.state} and has no addresses")
        return vm

    def _known_addresses(self) -> Generator[Program, Finished, list[list[str]]]:
        try:
            return (yield from self._addresses(_DESCRIBE_LIMIT_S))
        except OutletError:
            return []

    def _ask(
        self, operations: Sequence[Operation], worker: str, limit_s: float
    ) -> Generator[Program, Finished, _Answers]:
        """The answers of a worker, or of all, by the worker."""
        exchange = Exchange(operations, limit_s)
        self.sent_bytes += exchange.size
        with tempfile.TemporaryDirectory(prefix=f"{_DIRECTORY}{os.getpid()}-") as directory:
            (Path(directory) / "None").mkdir()
            command = reaching.command_with(exchange.request)
            is_open = all(isinstance(operation, _OPEN) for operation in operations)
            if not is_open or len(command) > reaching.LONGEST_COMMAND:
                command = yield from self._sent_ahead(exchange, worker, directory, limit_s)
            words = reaching.ssh_words(self._host, worker, command, directory)
            finished = yield self._program(words, directory, limit_s)
            logs = _logs(Path(directory) / "None", reaching.worker_count(finished.errors))
        answers = [exchange.answers(log) for log in logs]
        missing = [index for index, answer in enumerate(answers) if answer is None]
        if missing or not answers:
            raise self._failure(finished, logs, missing)
        return [answer for answer in answers if answer is not None]

    def _sent_ahead(
        self, exchange: Exchange, worker: str, directory: str, limit_s: float
    ) -> Generator[Program, Finished, str]:
        """Copies the request and the files that follow it; the command that gives them to the agent."""
        nonce = secrets.token_hex(8)
        names = reaching.file_names(nonce, 1 + len(exchange.sources))
        request = os.path.join(directory, names[0])
        with open(os.open(request, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(exchange.request)
        for name, source in zip(names[1:], exchange.sources, strict=True):
            os.symlink(os.path.abspath(source), os.path.join(directory, name))
        finished = yield self._program(reaching.scp_words(self._host, worker, names), directory, limit_s)
        if finished.exit_code != 0:
            failure = self._failure(finished, (), ())
            # scp names addresses only.
            missing = reaching.named_workers(str(failure), (yield from self._known_addresses()))
            raise OutletError(f"{failure} ({missing})" if missing else str(failure))
        return reaching.command_for_files(nonce)

    def _stop(self, directories: Sequence[str], limit_s: float, *, force: bool) -> Generator[Program, Finished, None]:
        """Stop attempts on all workers, because they cannot go on without the one that has failed."""
        if directories:
            marks = [Write(path=f"{each}/{contract.STOP_FILE}", content=b"") for each in directories]
            signals = [Signal(directory=each, force=force) for each in directories]
            yield from self._ask([*marks, *signals], reaching.ALL, limit_s)

    def _program(self, words: list[str], directory: str, limit_s: float) -> Program:
        return Program(words, limit_s=limit_s, environment=reaching.environment(), directory=directory)

    def _failure(self, finished: Finished, logs: Sequence[bytes], missing: Sequence[int]) -> OutletError:
        limit = f"{finished.killed_because}: " if finished.killed_because else ""
        return OutletError(f"{self._host.name}: {limit}{reaching.explain(finished.errors, logs, missing)}")


def _addresses_of(vm: Vm) -> list[list[str]]:
    """The addresses of each worker, the internal one first."""
    return [[worker.address, *filter(None, [worker.external])] for worker in vm.workers]


def _logs(directory: Path, count: int) -> list[bytes]:
    """What each of `count` workers has printed, by its index; none where gcloud did not come to any."""
    found = {int(match[1]): path.read_bytes() for path in directory.iterdir() if (match := _LOG.fullmatch(path.name))}
    return [found.get(index, b"") for index in range(max(count, max(found) + 1))] if found else []
