"""The setup of a method, and the program that a command names: what reaches the job, what keeps it from starting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.outlets.base import Ended
from dispatcher.run_state import liveness

HOSTILE = 'a\'; echo "foo" $(id) `id` \\ *\nsecond line'


def test_what_the_setup_does_reaches_the_command(trial, tmp_path):
    (tmp_path / "it's modules.sh").write_text("export FROM_FILE=sourced\nfalse\n[ -n '' ] && true\ntrue\n")
    setup = f"""
export HOSTILE={quoted(HOSTILE)}
source {quoted(str(tmp_path / "it's modules.sh"))}
[ -e /nonexistent ] && source /nonexistent
false || true
if false; then echo never; fi
unset UNSET_BY_SETUP
cd {quoted(str(tmp_path))}
echo setting up
"""
    one = trial('echo "$HOSTILE|$FROM_FILE|${{UNSET_BY_SETUP}}|$PWD"', setup=setup, env={"UNSET_BY_SETUP": "x"})
    assert one.start().end().exit_code == 0
    assert one.output == f"setting up\n{HOSTILE}|sourced||{tmp_path}\n"
    assert one.by_hand().returncode == 0


@pytest.mark.parametrize("setup", ["[ -e /nonexistent ] && true", "return 0\nfalse", "# nothing", "cat <<END\nx\nEND"])
def test_setups_that_end_well(trial, setup):
    one = trial("echo the command ran", setup=setup).start()
    assert one.end().exit_code == 0
    assert one.output.endswith("the command ran\n")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.mark.parametrize(
    ("setup", "status", "said"),
    [
        ("true\nls /nonexistent", 2, "setup, line 2, exit status 2: ls /nonexistent"),
        ("\nmodul load 'cu da'", 127, "setup, line 2, exit status 127: modul load 'cu da'"),
        ("source nothing.sh || exit 9\n", 9, "nothing.sh: No such file"),
        ("f() {\n  false\n  return 4\n}\nf", 4, "setup, line 5, exit status 4: f"),
        ("echo 'return 3' >three.sh\n. ./three.sh", 3, "setup, line 2, exit status 3: . ./three.sh"),
        ("exit 0", 1, "error: setup: it ended its shell with exit status 0 before the command (last line: none)"),
        ("echo so far; exec true", 1, "exit status 0 before the command (last line: so far)"),
        ("set -e\nsource /dev/stdin <<<false\n", 1, "error: setup: it ended its shell with exit status 1"),
        ("set -u\necho $NO_SUCH", 1, "(last line: "),
        ("set -u\necho $NO_SUCH", 1, "line 2: NO_SUCH: unbound variable)"),
        ("trap 'echo cleaned' EXIT\nfalse", 1, "setup, line 2, exit status 1: false\ncleaned\n"),
        ("if true; then", 2, "syntax error"),
        ("true\n) echo", 2, "syntax error"),
        ("echo 'open", 2, "unexpected EOF"),
        ("true\nreturn 5", 5, "setup: exit status 5"),
        ("trap 'exit 0' EXIT\nfalse", 1, "setup, line 2, exit status 1: false"),
    ],
)
def test_a_setup_that_fails_ends_the_attempt(trial, setup, status, said):
    """Whatever way it ends, the command has not run and the attempt is no success."""
    one = trial("echo the command ran", setup=setup).start()
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason) == (status, "setup")
    assert said in one.output
    assert "the command ran" not in one.output


TRAP = "S=own; clean() { echo cleaned $S after $?; exit 0; }; trap clean EXIT"


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("options", ["", "set -eu\n"])
def test_a_trap_of_the_setup_runs_when_the_command_has_ended(trial, status, options):
    """What it exits with is not the command's status."""
    one = trial(f"echo ran; exit {status}", setup=f"{options}{TRAP}").start()
    assert one.end().exit_code == status
    assert one.output == f"ran\ncleaned own after {status}\n"


def test_a_trap_of_the_setup_runs_when_the_command_was_stopped(trial):
    """After it has had its time to save."""
    command = "trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.05; done"
    one = trial(command, setup=TRAP).start().says("ready")
    one.send(signal.SIGTERM)
    assert one.end().exit_code == 75
    assert one.output.splitlines()[-2:] == ["saved", "cleaned own after 75"]


@pytest.mark.parametrize("word", ["source", "cd", "exit"])
def test_a_command_before_a_trap_is_a_program(trial, monkeypatch, tmp_path, word):
    one = trial("", command=(word, "x"), setup=TRAP).start()
    assert one.end().exit_code == 127
    assert f"'{word}': there is no such program" in one.output


def test_signals_and_the_life_sign_during_the_setup(trial):
    one = trial("echo the command ran", setup="echo ready\nsleep 60").start().says("ready")
    assert liveness.is_held(one.paths.alive) is True
    one.send(signal.SIGTERM)
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason) == (143, "")
    assert "the command ran" not in one.output


def test_a_setup_that_ends_well_when_it_is_stopped_is_not_done(trial):
    setup = "trap 'exit 0' TERM\necho ready\nwhile :; do sleep 0.05; done"
    one = trial("echo the command ran", setup=setup).start().says("ready")
    one.paths.stop.write_text("preempted\n")
    one.send(signal.SIGTERM)
    ended = one.end()
    assert (ended.exit_code, ended.exit_reason) == (1, "preempted")


def test_the_time_limit_counts_the_setup(trial):
    ended = trial("exit 0", setup="sleep 60", time_limit_s=1.0).start().end()
    assert (ended.exit_code, ended.exit_reason) == (143, "time limit")


def test_a_killed_setup_is_lost_as_a_command_is(trial):
    one = trial("exit 0", setup="echo ready; sleep 60").start().says("ready")
    one.send(signal.SIGKILL)
    assert one.end() == Ended(None, error="signal 9 killed its wrapper")


@pytest.mark.parametrize("setup", ["", "dispatcher_x=1"])
@pytest.mark.parametrize("word", ["source", "cd", "eval", "export", "exit", ":", "dispatcher_run", "no such program"])
def test_a_builtin_or_a_function_is_never_run_as_the_program(trial, monkeypatch, tmp_path, word, setup):
    (tmp_path / "bin").mkdir()
    for program in ("bash", "cat", "flock"):
        (tmp_path / "bin" / program).symlink_to(f"/usr/bin/{program}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    one = trial("", command=(word, "x && y"), setup=setup).start()
    assert one.end().exit_code == 127
    assert f"error: '{word}': there is no such program on PATH={tmp_path}/bin" in one.output


def test_a_program_that_bears_a_builtins_name_is_run(trial, tmp_path):
    program = tmp_path / "echo"
    program.write_text("#!/bin/bash\nprintf 'program %s\\n' \"$@\"\n")
    program.chmod(0o755)
    one = trial("", command=("echo", "a b", "-e"), setup=f"PATH={quoted(str(tmp_path))}:$PATH").start()
    assert one.end().exit_code == 0
    assert one.output == "program a b\nprogram -e\n"


WHERE = ("{python}", "-c", "import sys; print(sys.prefix)")


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("a'; echo foo") / "envs" / "asr"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    return path


def test_the_methods_python(trial, venv):
    for number, command in enumerate([WHERE, ("python", *WHERE[1:]), ("python3", *WHERE[1:])]):
        one = trial("", root=venv.parent / str(number), command=command, python=venv).start()
        assert one.end().exit_code == 0
        assert one.output == f"{venv}\n"


SHOWN = ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_PREFIX_1", "PYTHONPATH", "PYTHONHOME")
SHOW = f"import os, sys; print(sys.prefix, {{k: os.environ[k] for k in {SHOWN} if k in os.environ}})"


@pytest.fixture
def of_the_dispatcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with programs that is active where the dispatcher runs, before everything else on PATH."""
    programs = tmp_path / "own" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3", "torchrun"):
        (programs / name).write_text("#!/bin/sh\necho of the dispatcher\n")
        (programs / name).chmod(0o755)
    (tmp_path / "other").symlink_to(programs)
    monkeypatch.setenv("PATH", f"{tmp_path / 'other'}:/nonexistent::{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", str(programs.parent))
    monkeypatch.setenv("CONDA_PREFIX", str(programs.parent))
    monkeypatch.setenv("CONDA_PREFIX_1", "/opt/conda")
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "own")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return programs


def test_the_methods_environment_is_that_of_the_whole_tree(trial, venv, of_the_dispatcher):
    (venv / "bin" / "torchrun").symlink_to("python")
    for number, word in enumerate(["torchrun", "python", "python3"]):
        command = ("bash", "-c", f"{word} -c {quoted(SHOW)}; echo $PATH")
        one = trial("", root=venv.parent / f"tree{number}", command=command, python=venv).start()
        assert one.end().exit_code == 0
        shown, path = one.output.splitlines()
        assert shown == f"{venv} {{'VIRTUAL_ENV': {str(venv)!r}}}"
        places = path.split(":")
        assert places[:3] == [f"{venv}/bin", "/nonexistent", ""]
        assert str(of_the_dispatcher) not in places and f"{sys.prefix}/bin" not in places
        assert places[-1] == os.environ["PATH"].rpartition(":")[2]


def test_a_program_that_the_methods_environment_lacks_is_not_that_of_another(trial, venv, of_the_dispatcher):
    (venv / "bin" / "torchrun").unlink(missing_ok=True)
    one = trial("", command=("torchrun", "x"), python=venv).start()
    assert one.end().exit_code == 127
    assert "'torchrun': there is no such program" in one.output


@pytest.mark.parametrize(("place", "name"), [("miniconda/envs/asr", "asr"), ("conda", None)])
def test_a_conda_environment(trial, tmp_path, of_the_dispatcher, place, name):
    prefix = tmp_path / place
    (prefix / "bin").mkdir(parents=True)
    (prefix / "conda-meta").mkdir()
    (prefix / "bin" / "python").write_text('#!/bin/sh\necho "$CONDA_PREFIX $CONDA_DEFAULT_ENV ${VIRTUAL_ENV-none}"\n')
    (prefix / "bin" / "python").chmod(0o755)
    one = trial("", command=("bash", "-c", "python"), python=prefix).start()
    assert one.end().exit_code == 0
    assert one.output == f"{prefix} {name or prefix} none\n"


def test_variables_that_the_method_sets_stay(trial, venv):
    one = trial("", command=("{python}", "-c", SHOW), python=venv, env={"PYTHONPATH": "/x"}).start()
    assert one.end().exit_code == 0
    assert one.output == f"{venv} {{'VIRTUAL_ENV': {str(venv)!r}, 'PYTHONPATH': '/x'}}\n"


def test_an_interpreter_of_no_environment(trial, of_the_dispatcher):
    """The order of PATH stays where it is on it; else it comes first."""
    for number, python in enumerate(["/usr/bin/python3", None]):
        folder = of_the_dispatcher.parent / "plain"
        if python is None:
            folder.mkdir()
            (folder / "python3").symlink_to("/usr/bin/python3")
        one = trial(
            "", root=of_the_dispatcher.parent / str(number), command=("bash", "-c", "echo $PATH; type -P python3"),
            python=Path(python or folder / "python3"),
        ).start()  # fmt: skip
        assert one.end().exit_code == 0
        path, found = one.output.splitlines()
        first = path.split(":")[0]
        assert first == (str(folder) if python is None else "/nonexistent")
        assert not found.startswith((str(of_the_dispatcher), sys.prefix + "/"))


def test_without_python_the_environment_is_the_dispatchers(trial, of_the_dispatcher):
    one = trial("", command=("bash", "-c", "torchrun; echo $VIRTUAL_ENV $PATH")).start()
    assert one.end().exit_code == 0
    assert one.output == f"of the dispatcher\n{of_the_dispatcher.parent} {os.environ['PATH']}\n"


def test_a_setup_that_activates_an_environment_chooses_the_interpreter(trial, venv):
    one = trial("", command=WHERE, setup=f"source {quoted(str(venv))}/bin/activate").start()
    assert one.end().exit_code == 0
    assert one.output == f"{venv}\n"


def test_a_setup_that_leaves_python_alone_leaves_the_interpreter(trial):
    one = trial(
        "", command=WHERE, setup="export A=1; python=x; directory=x; command=x; report=x; set -u; IFS=/"
    ).start()
    assert one.end().exit_code == 0
    assert one.output == f"{sys.prefix}\n"


def test_the_methods_python_outweighs_the_setup(trial, venv, tmp_path):
    (tmp_path / "python").symlink_to("/bin/false")
    one = trial("", command=WHERE, setup=f"export PATH={quoted(str(tmp_path))}:$PATH", python=venv).start()
    assert one.end().exit_code == 0
    assert one.output == f"{venv}\n"


def test_the_contract_needs_no_other_package(trial):
    """A job in an environment of its own can use it with PYTHONPATH alone."""
    import dispatcher

    package = str(Path(dispatcher.__file__).parents[1])
    code = (
        "import sys\nassert not any('site-packages' in path for path in sys.path)\n"
        "from dispatcher.contract import report_progress, report_result\n"
        "report_progress(1, 2, loss=0.5)\nreport_result(score=3)"
    )
    one = trial("", command=("/usr/bin/env", sys.executable, "-S", "-c", code), env={"PYTHONPATH": package}).start()
    assert one.end().exit_code == 0, one.output
    assert one.paths.result.read_text() == '{"score": 3}\n'
