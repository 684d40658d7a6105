"""What `dispatcher submit` makes of a command: parameters, their product, ids."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from dispatcher.errors import UsageError
from dispatcher.matrix.new_jobs import NewJobs, product, read_csv, read_params, stem_of


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        ("python -m pkg.train --x 1", "train"),
        ("python3.11 -u src/train.py", "train"),
        ("bash run.sh", "run"),
        ("bash -c 'rm -rf /'", "bash"),
        ("env A=b timeout 90s ./a.out", "a.out"),
        ("torchrun --nproc_per_node 4 train.py", "train"),
        ("nice -n 10 '../a b'", "a-b"),
        ("'$(x)'", "x"),
        ("'///'", "job"),
    ],
)
def test_what_jobs_are_called(command: str, stem: str) -> None:
    assert stem_of(shlex.split(command)) == stem


def test_values_of_parameters() -> None:
    found = read_params(
        ["lr=1e-3,1e-4", "seed=1..3", r"text=a\,b,c", "on=true", "none=", "n=-1..1,7", "p=../a,..,a..b"]
    )
    assert {key: list(values) for key, values in found.items()} == {
        "lr": [0.001, 0.0001],
        "seed": [1, 2, 3],
        "text": ["a,b", "c"],
        "on": [True],
        "none": [""],
        "n": [-1, 0, 1, 7],
        "p": ["../a", "..", "a..b"],
    }


def test_commas_in_brackets_and_quotes_belong_to_values() -> None:
    found = read_params(
        [
            "layers=[1,2],[3,4]",
            'opt={"a": 1, "b": [2]},{"a": 2}',
            "data=range(0,3),f(g(1,2),[3,4])",
            """text="a, b", 'c, d' ,it's,5",\\\"""",
            'torch=2.9,2.10,"1e-3","true",[1.10,2]',
            "blank= a , b",
            'empty="",x',
            "x=null,0",
        ]
    )
    assert {key: list(values) for key, values in found.items()} == {
        "layers": [[1, 2], [3, 4]],
        "opt": [{"a": 1, "b": [2]}, {"a": 2}],
        "data": ["range(0,3)", "f(g(1,2),[3,4])"],
        "text": ["a, b", "c, d", "it's", '5"', '\\"'],
        "torch": [2.9, "2.10", "1e-3", "true", "[1.10,2]"],
        "blank": ["a", "b"],
        "empty": ["", "x"],
        "x": [None, 0],
    }


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["lr"], "expected KEY=VALUE"),
        (["gpus=1"], "gpus is a key of every entry"),
        (["a b=1"], '"a b" cannot be a parameter'),
        (["a=1", "a=2"], "a has values already"),
        (["a=3..1"], "the range is empty"),
        (["a=0.1..0.5"], "a range is one of whole numbers"),
        (["a=1..9..2"], "a range is one of whole numbers"),
        (["a=1.."], "a range is one of whole numbers"),
        (["a=1...3"], "a range is one of whole numbers"),
        (["a=1,b..2"], "a range is one of whole numbers"),
        (["a=1e-3,0.001"], "the value 0.001 is there twice"),
        (["a=1..3,2"], "the value 2 is there twice"),
        (["a=,"], "one of the values is empty"),
        (["a=[1,2"], r"\[1 begins with \[ and lacks its \]: add it, or put the value in quotes"),
        (["a=1,'tis"], "'tis begins with ' and lacks its other '"),
        (["a=[1,2],[1, 2]"], r"the value \[1, 2\] is there twice"),
        (["cpus=2"], "cpus is what a job asks for"),
        (["memory=1G"], "memory is what a job asks for"),
        (["a=1..1000000000,7"], "1000000001 jobs at once"),
    ],
)
def test_parameters_that_cannot_be_used(options: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        read_params(options)


def test_every_combination_and_no_more_than_a_command_can_have() -> None:
    rows = product(read_params(["a=1,2", "b=x,y"]), [{"c": 1}, {"c": 2}])
    assert [tuple(row.values()) for row in rows] == [
        (c, a, b) for c in (1, 2) for a in (1, 2) for b in ("x", "y")
    ]  # fmt: skip
    with pytest.raises(UsageError, match="1000000000 jobs at once"):
        product(read_params(["a=1..1000000000"]), None)
    with pytest.raises(UsageError, match="has a column of that name"):
        product({"c": [1]}, [{"c": 2}])


def test_csv_files() -> None:
    data = b'\xef\xbb\xbfname,prompt,lr\r\na,"hello, you",1e-3\r\n\r\n,,\r\nb,"two\nlines",x\r\n'
    assert read_csv(data, "f") == [
        {"name": "a", "prompt": "hello, you", "lr": 0.001},
        {"name": "b", "prompt": "two\nlines", "lr": "x"},
    ]


def test_cells_are_read_as_the_values_of_an_option() -> None:
    data = (
        b"dataset, seed ,layers, text\n"
        b'imdb, 1,"[1, 2]"," a "\n'
        b'sst2 ,\t2.10 , "{""a"": 1}" ,"""so"", he said"\n'
        b"true,1e-3,,it's 5\" wide\n"
        b"null,'1',C:\\,range(3)\n"
    )
    keys = ("dataset", "seed", "layers", "text")
    assert [tuple(row[key] for key in keys) for row in read_csv(data, "f")] == [
        ("imdb", 1, [1, 2], " a "),
        ("sst2", "2.10", {"a": 1}, '"so", he said'),
        (True, 0.001, "", "it's 5\" wide"),
        (None, "'1'", "C:\\", "range(3)"),
    ]
    assert read_csv(b"a,b\r1,\r", "f") == [{"a": 1, "b": ""}]
    assert read_csv(b"a,b\n1,", "f") == [{"a": 1, "b": ""}]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"a,b\n", "no line with a job"),
        (b"a,b\n1,2\n1,2,3\n", "line 3: 3 values, but the header has 2"),
        (b"a,a\n1,2\n", '"a" is there twice'),
        (b"a,job_id\n1,2\n", "job_id is a key"),
        (b"a;b\n1;2\n", "separated by semicolons"),
        (b"a\tb\n1\t2\n", "separated by tabs"),
        (b"a,\n1,\n", "column 2 has no name"),
        (b"name\n../x\n", 'line 2: name = "../x"'),
        (b'a\n"1\n', "line 2: a quotation mark"),
        (b'a,b\n1,2\n"x"y,1\n', "line 3: there is more in a cell behind its quoted text"),
        (b"a,b,c\n[1,2],3\n", r"line 2: \[1,2\] has a comma within brackets or quotes"),
        (b"a,b\nrange(0,3)\n", r"line 2: range\(0,3\) has a comma within brackets"),
        (b"a\n\xff\n", "0xff is not UTF-8"),
    ],
)
def test_csv_files_that_cannot_be_used(data: bytes, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        read_csv(data, "jobs.csv")


def ids(taken: set[str], **fields: Any) -> list[str]:
    return [one["job_id"] for one in NewJobs(common={}, **fields).documents(taken.__contains__)]


def test_ids() -> None:
    assert ids(set(), stem="train") == ["train-1"]
    assert ids({"train-1", "train-3"}, stem="train") == ["train-2"]
    assert ids({"mine"}, stem="train", name="mine") == ["mine"], "whoever adds it refuses"
    rows = product(read_params(["lr=1e-3,1", "s=a b,c"]), None)
    several = ids(set(), stem="t", rows=rows, telling=("lr", "s"))
    assert several == ["t_lr0.001_sa-b", "t_lr0.001_sc", "t_lr1_sa-b", "t_lr1_sc"]
    again = ids({"t_lr1_sc"}, stem="t", rows=rows, telling=("lr", "s"))
    assert again == [f"t-2{one[1:]}" for one in several], "those of one command belong together"
    named = [{"name": "x", "p": 1}, {"name": "y", "p": 2}]
    assert ids(set(), rows=named) == ["x", "y"]
    assert ids(set(), rows=[{**row, "q": 3} for row in named], telling=("q",)) == ["x_q3", "y_q3"]


def test_ids_tell_the_signs_of_numbers_apart() -> None:
    rows = product(read_params(["x=-1,1,1e20,1e-20,-x"]), None)
    assert ids(set(), stem="t", rows=rows, telling=("x",)) == ["t_x-1", "t_x1", "t_x1e20", "t_x1e-20", "t_xx"]


def test_ids_that_values_cannot_tell_apart_are_numbered() -> None:
    assert ids(set(), stem="t", rows=[{"p": "a b"}, {"p": "a?b"}], telling=("p",)) == ["t_1", "t_2"]
    assert ids(set(), stem="t", rows=[{"p": "A"}, {"p": "a"}], telling=("p",)) == ["t_1", "t_2"]
    assert ids(set(), stem="t", rows=[{"p": "x" * 300}], telling=("p",)) == ["t_1"]
