"""What a chat completion says: an answer, or one of the other things that come with status 200.

    answer      text that the model has ended itself
    cut         text that ended otherwise: at `max_tokens` or the length of the context, or for another reason
    tool_calls  calls of tools, with or without text
    refused     the model or the API's filter has refused; the row may have what was written before
    empty       no text at all: null, "", blanks, or only reasoning that has used up the tokens

`failed` are requests that the API refused or never answered. What came with status 200 was computed and is kept: it is
not asked for again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final


class Outcome(StrEnum):
    """What became of a request."""

    ANSWER = "answer"
    CUT = "cut"
    TOOL_CALLS = "tool_calls"
    REFUSED = "refused"
    EMPTY = "empty"
    FAILED = "failed"


OUTCOME: Final = "outcome"
_FURTHER: Final = "further_choices"
# Why a model has ended itself, as APIs call it; some give no reason.
_ENDED: Final = frozenset(
    {None, "stop", "eos", "eos_token", "stop_sequence", "end_turn", "tool_calls", "function_call"}
)
_FILTERED: Final = "content_filter"
_OUTCOMES: Final = frozenset(Outcome)


def row_of(response: Any) -> dict[str, Any]:
    """The row of a response: `text`, `finish_reason` and `outcome` of its first choice, `tool_calls` and `refusal` if
    it has any, and the same of all further choices as `further_choices`.

    LookupError, TypeError or AttributeError for a response of another form.
    """
    first, *further = [_read(choice) for choice in response["choices"]]
    return {**first, _FURTHER: further} if further else first


def _read(choice: Any) -> dict[str, Any]:
    # Completions without messages have the text itself.
    message = choice["message"] if "message" in choice else {"content": choice["text"]}
    text, refusals = _text(message.get("content"))
    calls = message.get("tool_calls") or ([message["function_call"]] if message.get("function_call") else [])
    refusal = message.get("refusal") or " ".join(refusals)
    reason = choice.get("finish_reason")
    row = {"text": text, "finish_reason": reason, OUTCOME: _outcome(text, reason, calls, refusal).value}
    return {**row, **({"tool_calls": calls} if calls else {}), **({"refusal": refusal} if refusal else {})}


def _outcome(text: str | None, reason: Any, calls: Any, refusal: str) -> Outcome:
    if refusal or reason == _FILTERED:
        return Outcome.REFUSED
    if calls:
        return Outcome.TOOL_CALLS
    if text is None or not text.strip():
        return Outcome.EMPTY
    return Outcome.ANSWER if reason in _ENDED else Outcome.CUT


def _text(content: Any) -> tuple[str | None, list[str]]:
    """The text of a message, which may be a list of parts, and the refusals among these."""
    if content is None or isinstance(content, str):
        return content, []
    texts, refusals = [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif "refusal" in part:
            refusals.append(part["refusal"])
        elif isinstance(part.get("text"), str) and part.get("type") not in ("thinking", "reasoning"):
            texts.append(part["text"])
    return ("".join(texts) if texts else None), refusals


class OutcomeCounts:
    """Counts what became of requests, by the rows that are taken from `counted`.

    A row of one's own, which says no outcome, counts as an answer unless its request has failed.
    """

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._further = 0
        self._others = 0

    def counted(self, rows: Iterable[Any]) -> Iterator[Any]:
        """The rows, each counted when it is taken."""
        for row in rows:
            outcome = row.get(OUTCOME) if isinstance(row, Mapping) else None
            if isinstance(outcome, str) and outcome in _OUTCOMES:
                self._outcomes[outcome] += 1
                self._further += len(row.get(_FURTHER) or ())
            else:
                self._others += 1
            yield row

    def row(self, failures: int) -> dict[str, int]:
        """The counts, of `failures` requests without a response; `failed` are all that have no text or are refused."""
        of = self._outcomes
        return {
            "answers": of[Outcome.ANSWER] + self._others - (failures - of[Outcome.FAILED]),
            "cut": of[Outcome.CUT],
            "tool_calls": of[Outcome.TOOL_CALLS],
            _FURTHER: self._further,
            "failed": failures + of[Outcome.EMPTY] + of[Outcome.REFUSED],
            "empty": of[Outcome.EMPTY],
            "refused": of[Outcome.REFUSED],
        }

    def incomplete(self) -> str:
        """How many responses are no answers, in words; empty if all are."""
        others = [one for one in Outcome if one not in (Outcome.ANSWER, Outcome.FAILED) and self._outcomes[one]]
        return ", ".join(f"{self._outcomes[one]} {one.value}" for one in others)
