"""`--where`: which values a condition matches."""

from __future__ import annotations

import pytest

from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where, literal


@pytest.mark.parametrize(
    ("option", "matching", "others"),
    [
        ("lang=greek,hindi", ["greek", "hindi"], ["greek,hindi", "greekish", "", None]),
        ("lang=gr*,h?ndi", ["greek", "grec", "hindi"], ["hndi"]),
        ("lang!=greek,hindi", ["spanish", None], ["greek", "hindi"]),
        ("seed=1,3", [1, 3], [2, 13, "1,3"]),
        ("data=a\\,b", ["a,b"], ["a", "b", "a\\,b"]),
        ("data=a\\,b,c", ["a,b", "c"], ["a,b,c"]),
        ("layers=[2,4]", [[2, 4], 2, "4"], [[2], [4, 2], [2, 4, 6], "[2,4]", None]),
        ("layers=[2, 4],[6]", [[2, 4], [6], 6], [[2, 4, 6], 5]),
        ("layers!=[2,4]", [[2], None], [[2, 4]]),
        ('langs=["greek","hindi"]', [["greek", "hindi"]], ["greek", ["greek"], ["greek,hindi"]]),
        ("langs=*hindi*", [["greek", "hindi"], "hindi"], [["greek"]]),
        ('opt={"b":[1,2],"a":"x,y"}', [{"a": "x,y", "b": [1, 2]}], [{"a": "x,y"}, {"a": "x,y", "b": [1]}]),
        ('note="a, b",c', ["a, b", "c", '"a, b"'], ["a", " b", '"a']),
        ('note="a*"', ["a*", '"ab"'], ["ab"]),
        ("seed=[12],4*", [1, 2, 40, [12]], [12, 3]),
        ("layers=[2,4]", [[2, 4]], ["\ud800", ["\ud800"], 2**70, [2**70]]),
        # What is not closed is a letter like others.
        ("note=a[b,c", ["a[b", "c"], ["a[b,c"]),
        ("note=[[]a,c", ["[a", "c"], ["a", "[a,c"]),
        ('note=["]a*', ['"a', '"ab"'], ["a"]),
        ("note!=[{]a", ["a"], ["{a"]),
        ('note=5",6', ['5"', 6], ['5",6']),
        ("data=C:\\*", ["C:\\x"], ["C:"]),
        ("data=range(0,3),x", ["range(0,3)", "x"], ["range(0", "3)"]),
        ("note='a, b',it's", ["a, b", "it's"], ["a", "b"]),
        # Blanks around a value count in quotes.
        ('lang=greek, hindi ," x"', ["greek", "hindi", " x"], [" hindi", "x"]),
        # The same values as in --param and in CSV files.
        ("lr=1e-3,5E-5", [0.001, 5e-05, "1e-3"], ["0.0010", 1e-4]),
        ("torch=2.10", ["2.10"], [2.1, "2.1"]),
        ("x=null", [None, "null"], ["", 0, False]),
        ("x!=null", ["", 0, False], [None, "null"]),
        ("x=true", [True, "true"], [1, "True"]),
        ("lang=,greek", ["greek", "", None], ["hindi"]),
        ("lang=", ["", None], ["greek"]),
        ("lang=*", ["greek", ""], [None]),
        ("lang!=", ["greek"], ["", None]),
    ],
)
def test_values_that_match(option, matching, others):
    where = Where.parse([option])
    assert [value for value in [*matching, *others] if where.holds(lambda _: value)] == matching  # noqa: B023 (at once)


def test_several_conditions_must_all_hold():
    where = Where.parse(["lang=greek,hindi", "seed!=4*"])
    assert where.holds({"lang": "hindi", "seed": 1}.get)
    assert str(where.first_miss({"lang": "hindi", "seed": 42}.get)) == "seed!=4*"
    assert str(where.first_miss({"lang": "latin", "seed": 42}.get)) == "lang=greek,hindi"


@pytest.mark.parametrize(
    ("option", "missing", "instead"),
    [
        ("lang=[a", "its ]", "[[]a"),
        ('lang="', 'its other "', '["]'),
        ("opt={x,y", "its }", "[{]x"),
        ('lang!=greek,"a', 'its other "', '["]a'),
        ("layers=[[2,4]", "its ]", "[[][2,4]"),
        ("note=(a,b", "its )", "[(]a"),
        ("note='tis", "its other '", "[']tis"),
    ],
)
def test_what_begins_with_a_bracket_or_a_quote_has_its_other_end(option, missing, instead):
    with pytest.raises(UsageError) as raised:
        Where.parse([option])
    assert str(raised.value).startswith(f"--where {option}: ")
    assert f"lacks {missing}: add it, or write {instead} for text" in str(raised.value)
    Where.parse([option.split("=")[0] + "=" + instead])


@pytest.mark.parametrize("option", ["note=a[b", 'note=5"', "seed=[12]*", "layers=[[],[1]]", 'note="a, b"', "lang="])
def test_other_values_are_not_refused(option):
    assert str(Where.parse([option]).conditions[0]) == option


@pytest.mark.parametrize(
    "value", ["a,b", " a", "a ", "[a]", "{a", "(a,b)", '"a"', "'a'", "it's, so", "*", "\t", "f(x, [y)", '["]a,b']
)
def test_the_pattern_of_a_text_matches_it_and_nothing_else(value):
    where = Where.parse([f"key={literal(value)}"])
    others = [value.strip("\"' \t"), value.strip() + ".", value.partition(",")[0], "b"]
    found = [one for one in [value, *others] if where.holds(lambda _: one)]  # noqa: B023 (at once)
    assert set(found) == {value}
