"""Reading the answers of a host to the programs that it was asked to run."""

from __future__ import annotations

from typing import Any

from dispatcher.errors import OutletError
from dispatcher.outlets.remote.operations import Failed, Ran

_SHOWN = 300


def output(program: str, answer: Any) -> str:
    """What a program printed; OutletError with its own words when it failed."""
    if isinstance(answer, Failed):
        raise OutletError(f"{program}: {answer.error}")
    assert isinstance(answer, Ran), answer
    if answer.exit_code is None:
        raise OutletError(f"{program} did not answer in time")
    if answer.exit_code:
        said = " ".join((answer.err.strip() or answer.out.strip()).split())[:_SHOWN]
        raise OutletError(f"{program} failed with exit status {answer.exit_code}: {said or 'it printed nothing'}")
    return answer.out
