"""Text as tokens, by any object with `encode` and `decode`: a tokenizer of Hugging Face, of tiktoken, one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from dispatcher.errors import UsageError

# The messages of a conversation: {"role": ..., "content": ...} each.
Chat = Sequence[Mapping[str, Any]]


@runtime_checkable
class Encoding(Protocol):
    """Maps text to tokens and back. With `apply_chat_template`, as Hugging Face has it, also conversations."""

    def encode(self, text: str, /) -> Sequence[int]: ...

    def decode(self, tokens: Sequence[int], /) -> str: ...


class ByteEncoding:
    """The bytes of UTF-8, of which a model with a vocabulary of 256 or more has each as a token."""

    vocab_size: Final = 256

    def encode(self, text: str, /) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], /) -> str:
        """The text; tokens that are no bytes are left out, bytes that are no text become U+FFFD."""
        return bytes(token for token in tokens if token < self.vocab_size).decode(errors="replace")


def encoded(encoding: Encoding, prompt: str | Chat) -> list[int]:
    """The tokens of a prompt, or of a conversation up to where the answer begins."""
    if isinstance(prompt, str):
        return [int(token) for token in encoding.encode(prompt)]
    template = getattr(encoding, "apply_chat_template", None)
    if template is None:
        raise UsageError(
            f"the prompt is a conversation, but {type(encoding).__qualname__} has no apply_chat_template: expected text"
        )
    found = template(list(prompt), tokenize=True, add_generation_prompt=True)
    # Hugging Face returns a mapping since version 5.
    tokens = found["input_ids"] if isinstance(found, Mapping) else found
    return [int(token) for token in tokens]
