"""Which commands need a shell: compared with what bash itself makes of them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher.config import Method
from dispatcher.errors import TemplateError
from dispatcher.matrix import Entry
from dispatcher.templates.render import command_line
from dispatcher.templates.shell_syntax import shell_syntax


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("source venv/bin/activate && python {script}", "&&"),
        ("source venv/bin/activate", "source"),
        (". venv/bin/activate", "."),
        ("cd src", "cd"),
        ("export A=1", "export"),
        ("exec python {script}", "exec"),
        ("CUDA_VISIBLE_DEVICES=0 python {script}", "CUDA_VISIBLE_DEVICES="),
        ("python {script} || true", "||"),
        ("python a.py; python b.py", ";"),
        ("python {script}|tee log", "|"),
        ("python {script} > log 2>&1", ">"),
        ("python {script} 2>&1", ">&"),
        ("python {script} &>log", "&>"),
        ("python {script} <input", "<"),
        ("python {script} &", "&"),
        ("(python {script})", "("),
        ("python {script} --out $HOME/out", "$HOME"),
        ('python {script} --out "$HOME/out"', "$HOME"),
        ("python {script} --out ${HOME}", "${HOME}"),
        ("python {script} --now $(date)", "$("),
        ('python {script} --now "`date`"', "`"),
        ('python {script} "\\$HOME"', "a backslash before '$'"),
        ("python {script} data/*.txt", "*"),
        ("python ~/train.py", "~"),
        ("python {script} out=~/out", "~"),
        ("python {script} path='/a b':~", "~"),
        ("python {script} # the main one", "#"),
        ("python {script} \\\n  --lr 3", "a line break"),
        ("module load cuda\npython {script}", "a line break"),
    ],
)
def test_what_needs_a_shell_is_refused_and_named(command: str, named: str) -> None:
    assert shell_syntax(command).startswith(named)
    one = Entry(job_id="job", method="m", command=command, params={})
    with pytest.raises(TemplateError) as caught:
        command_line(Method(name="m", template=Path("t.py")), one, Path("s.py"))
    for way in ("job: command = ", "`setup`", "`python`", '["bash", "-c", "..."]'):
        assert way in str(caught.value)


def test_the_methods_command_is_named_as_the_methods() -> None:
    method = Method(name="fft", template=Path("t.py"), command="cd src")
    with pytest.raises(TemplateError, match=r"^method fft: command = "):
        command_line(method, Entry(job_id="job", method="fft", params={}), Path("s.py"))


@pytest.mark.parametrize(
    "command",
    [
        "python {script}",
        "{python} {script} --x 'a && b; $HOME `id` * ~ #'",
        'python {script} --x "a && b; * ~ #"',
        "python {script} a=b --c=d e~f a#b \\$HOME \\* \\&\\& 50% ^x x? [1,2] {1,2}",
        "  python -m torch.distributed.run --nproc-per-node {gpus} {script}\n",
        "env A=1 python {script}",
        "true",
        "test -e x",
        "time python",
    ],
)
def test_what_needs_none_is_taken(command: str) -> None:
    assert shell_syntax(command) == ""


PIECES = [
    "a",
    "b c",
    " ",
    "'",
    '"',
    "\\",
    "$",
    "$A",
    "${A}",
    "`",
    "*",
    ";",
    "&",
    "|",
    ">",
    "<",
    "(",
    "#",
    "~",
    "=",
    "\n",
]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
@example("$''")
@example('"\\$"')
@example("\\ ")
@example("a=~")
@example("~=~")
def test_what_is_taken_arrives_as_bash_would_pass_it_on(text: str) -> None:
    command = f"printf %s\\\\0 {text}"
    try:
        words = shlex.split(command)
    except ValueError:
        return
    if shell_syntax(command):
        return
    by_bash = subprocess.run(["bash", "-c", command], capture_output=True, cwd="/", env={"HOME": "/"}, check=False)
    by_us = subprocess.run(words, capture_output=True, cwd="/", check=False)
    assert (by_bash.stdout, by_bash.returncode) == (by_us.stdout, by_us.returncode)
