"""One request from stdin, carried out operation by operation, and one answer to stdout."""

import json
import os
import signal
import sys
import traceback
import zlib
from typing import Any, BinaryIO, List

from dispatcher.outlets.remote.agent.attempts import check
from dispatcher.outlets.remote.agent.facts import hello
from dispatcher.outlets.remote.agent.gpus import list_gpus
from dispatcher.outlets.remote.agent.launching import launch
from dispatcher.outlets.remote.agent.names import AgentError, Data, is_same_place
from dispatcher.outlets.remote.agent.programs import find_pbs, run
from dispatcher.outlets.remote.agent.reading import read, tail
from dispatcher.outlets.remote.agent.signals import send_signal
from dispatcher.outlets.remote.agent.storing import has, remove, store, trees
from dispatcher.outlets.remote.agent.writing import deliver, write

OPERATIONS = {
    "Hello": hello,
    "Run": run,
    "RunThere": run,
    "Confirm": run,
    "Deliver": deliver,
    "Write": write,
    "Read": read,
    "Tail": tail,
    "Launch": launch,
    "Check": check,
    "Signal": send_signal,
    "ListGpus": list_gpus,
    "Has": has,
    "Store": store,
    "Trees": trees,
    "Remove": remove,
}


def perform(words: Data, stdin: BinaryIO) -> List[Any]:
    """`["done", answer]`, or `["failed", why]`: an operation that fails does not affect the others."""
    try:
        return ["done", OPERATIONS[words["type"]](words, stdin)]
    except OSError as error:
        # Of a renaming, the name that was wanted.
        named = error.filename2 or error.filename
        where = f"{named}: " if named else ""
        return ["failed", {"error": where + (error.strerror or str(error)), "errno": error.errno or 0}]
    except AgentError as error:
        return ["failed", {"error": str(error), "errno": 0}]
    except Exception as error:  # noqa: BLE001 -- unexpected output of a program must not hide the other answers
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}, line {place.lineno}, in {place.name}"
        why = f"{words['type']}: {type(error).__name__}: {error} ({where})"
        return ["failed", {"error": why, "errno": 0}]


def confirmed(answer: List[Any]) -> List[Any]:
    """The answer to `Confirm`: a program that fails, or prints nothing, has not told anything."""
    word, told = answer
    if word == "failed" or (told["exit_code"] == 0 and told["out"].strip()):
        return answer
    status = "no answer in time" if told["exit_code"] is None else "exit status %d" % told["exit_code"]
    return ["failed", {"error": "%s (%s)" % (" ".join((told["err"] or told["out"]).split()), status), "errno": 0}]


def main() -> None:
    find_pbs()
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    request = json.loads(zlib.decompress(stdin.read(int(stdin.readline()))).decode())
    # By then its dispatcher has stopped waiting.
    signal.setitimer(signal.ITIMER_REAL, request["limit_s"])
    umask = os.umask(0o022)
    os.umask(umask)
    answers: List[List[Any]] = []
    not_done: List[str] = []
    why = ""
    for words in request["operations"]:
        before = words.pop("only_after")
        if words["type"] in not_done:
            answers.append(["failed", {"error": why, "errno": 0}])
            continue
        if before and any(word == "failed" for word, _ in answers[-before:]):
            answers.append(["failed", {"error": "not done, because what comes before it has failed", "errno": 0}])
            continue
        answers.append(perform(words, stdin))
        os.umask(umask)
        if words["type"] == "Confirm":
            word, told = answers[-1] = confirmed(answers[-1])
            if word == "failed":
                not_done, why = ["Run"], told["error"]
            elif words["wanted"] is not None and not is_same_place(told["out"], words["wanted"]):
                not_done, why = list(OPERATIONS), "not done: this is %s" % told["out"].strip()
    answer = zlib.compress(json.dumps(answers).encode())
    stdout.write(b"\n%s %d\n" % (request["nonce"].encode(), len(answer)) + answer)
    stdout.flush()
