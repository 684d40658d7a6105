"""Amounts as Kubernetes writes them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from dispatcher.hosts.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", "0"),
        ("4", "4"),
        ("+4", "4"),
        ("-1", "-1"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("2.", "2"),
        ("500m", "0.5"),
        ("100u", "0.0001"),
        ("5n", "0.000000005"),
        ("3k", "3000"),
        ("2M", "2000000"),
        ("1E", "1000000000000000000"),
        ("1Ki", "1024"),
        ("64Gi", "68719476736"),
        ("1.5Gi", "1610612736"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("12e-3", "0.012"),
    ],
)
def test_amounts(text: str, number: str) -> None:
    assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "Gi", "4 Gi", "4GB", "1K", "1e", "one", "4g", "4\n", "1e9999999"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="expected an amount such as"):
        parse_quantity(text)
