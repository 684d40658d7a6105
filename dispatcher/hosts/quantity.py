"""Amounts as Kubernetes writes them: `4`, `500m`, `1.5`, `64Gi`, `1e3`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,3}))?")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def parse_quantity(text: str) -> Decimal:
    """The number that is meant; ValueError for what is none."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"expected an amount such as 4, 500m or 64Gi, not {text!r}")
    number, binary, decimal, exponent = found.groups()
    amount = Decimal(number)
    if binary:
        return amount * Decimal(1024) ** (_BINARY.index(binary) + 1)
    return amount.scaleb(_DECIMAL[decimal] if decimal else int(exponent or 0))
