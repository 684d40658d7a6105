"""Counts and lists of faults, as all messages word them."""

from __future__ import annotations

from dispatcher.base.messages import counted, indented, problems, shortened
from dispatcher.errors import CheckpointMismatchError, ConfigError, ManifestError, ModelStateError


def test_counts() -> None:
    assert [counted(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]


def test_lists_of_faults() -> None:
    assert problems("a.yaml", ["one"]) == "a.yaml: 1 problem\n  one"
    assert problems("a.yaml", iter(["one", "two"])) == "a.yaml: 2 problems\n  one\n  two"
    assert indented("a", ["1", "2", "3"], most=3) == "a\n  1\n  2\n  3"
    assert indented("a", ["1", "2", "3"], most=2) == "a\n  1\n  2\n  ... and 1 more"


def test_errors_with_faults_are_worded_alike() -> None:
    faults = [f"fault {number}" for number in range(21)]
    assert str(ManifestError("m.json", faults[:1])) == str(ConfigError.of("m.json", faults[:1]))
    assert str(ManifestError("m.json", faults)).splitlines()[-1] == "  fault 20"
    mismatch = str(CheckpointMismatchError("step/1", faults, "Do this")).splitlines()
    assert mismatch[0] == "step/1: 21 leaves do not fit" and mismatch[-2:] == ["  ... and 1 more", "Do this"]
    assert str(ModelStateError(faults)).splitlines()[-2:] == ["  fault 19", "  ... and 1 more"]


def test_a_long_list_on_one_line() -> None:
    assert shortened(["a", "b", "c"], 3) == ["a", "b", "c"]
    assert shortened([str(one) for one in range(2000)], 5) == ["0", "1", "... 1,996 more ...", "1998", "1999"]
