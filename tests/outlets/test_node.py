"""What node.sh does around a command: status, signals, variables, modules, setup, extraction and cleaning up."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from fleet import wait_until
from hostile_words import HOSTILE_WORDS
from node_trials import archive_of

from dispatcher.outlets.node.setup import code_file

NODE = os.uname().nodename
MODULES = Path("/usr/share/modules/init/bash")
CODE = {"train.py": "print('trained')", "data/": "", "data/a'b c.txt": "x\n", "run_state/old.txt": "old"}


@pytest.mark.parametrize("status", [0, 1, 75, 255])
def test_exit_status(node, status):
    one = node.run(f"echo out; echo err >&2; exit {status}")
    assert (one.status, one.output) == (status, "out\nerr\n")
    assert (one.has_failed_setup, one.first) == (False, f"status {status}" if status else "")
    assert node.leftovers() == []


def test_hostile_words_arrive(node):
    environment = {f"WORD_{number}": word for number, word in enumerate(HOSTILE_WORDS)}
    script = "import os, sys, json; print(json.dumps([sys.argv[1:], [os.environ[f'WORD_{n}'] for n in range(%d)]]))"
    words = ["python3", "-c", script % len(HOSTILE_WORDS), *HOSTILE_WORDS]
    one = node.run("", arguments=words, environment=environment)
    import json

    assert json.loads(one.output) == [list(HOSTILE_WORDS), list(HOSTILE_WORDS)]
    assert not list(node.folder.rglob("pwned"))


def test_variables_of_the_attempt_come_before_those_of_the_host(node):
    node.configure(env={"A": "host", "B": "host", "GONE": "host"})
    one = node.run('echo "$A $B ${GONE-unset} $PWD"', environment={"A": "entry", "GONE": None})
    assert one.output == f"entry host unset {node.root}\n"


def test_a_program_that_is_not_there(node):
    one = node.run("", arguments=["no such program"])
    assert one.status == 127
    assert "error: 'no such program': there is no such program on PATH=" in one.output
    assert not one.has_failed_setup


def test_a_command_dies_of_a_signal(node):
    one = node.run("echo last words; kill -9 $$")
    assert (one.status, one.output) == (137, "last words\n")


COUNTS = """
import signal, sys, time
got = []
def told(number, _):
    got.append(number)
    print("told", number, flush=True)
signal.signal(signal.SIGTERM, told)
signal.signal(signal.SIGINT, told)
print("ready", signal.getsignal(signal.SIGHUP) is signal.SIG_DFL, flush=True)
while not got:
    time.sleep(0.02)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    time.sleep(0.02)
sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to_group", [True, False])
def test_a_command_is_told_once_to_stop(node, number, to_group):
    """Whether the whole process group was signalled, as wrappers and schedulers do, or node.sh alone."""
    one = node.start("", arguments=["python3", "-c", COUNTS]).says("ready")
    if to_group:
        one.tell_group(number)
    else:
        one.process.send_signal(number)
    one.ended()
    assert one.status == 7
    assert one.output == f"ready True\ntold {int(number)}\n"
    assert one.first == f"signal {signal.Signals(number).name.removeprefix('SIG')}"


def test_a_command_that_signals_do_not_reach_otherwise_can_be_interrupted(node):
    show = "import signal; print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    one = node.run("", arguments=["python3", "-c", show])
    assert "default_int_handler" in one.output
    assert "True" in one.output


def test_the_command_gets_no_descriptor_of_the_script(node):
    one = node.run("readlink /proc/$$/fd/*", code=archive_of(CODE))
    links = [line for line in one.output.splitlines() if line.startswith("/") and "pipe" not in line]
    assert set(links) == {"/dev/null", os.fspath(one.log)}
    assert "pipe:" not in one.output


def test_code_is_extracted_and_removed_after_success(node):
    node.layout.run_state.mkdir(exist_ok=True)
    script = """
        echo "$PWD"; echo "${DISPATCHER_ROOT-as it was}"; echo "$DISPATCHER_CODE_COMMIT"; cat "data/a'b c.txt"
        ls run_state; touch run_state/new; mkdir -m 500 locked; touch made
    """
    one = node.run(script, code=archive_of(CODE))
    assert one.status == 0
    tree = node.work / "dispatcher-work" / node.setup.work_id / "job.1" / NODE / "tree"
    assert one.output.splitlines()[1:] == [str(tree), "as it was", "abc", "x", "jobs"]
    assert (node.layout.run_state / "new").exists()
    assert node.leftovers() == []


def test_each_rank_has_a_temporary_directory_of_its_own(node):
    """Where the host or the attempt names one, that is used."""
    script = 'echo "$TMPDIR"; stat -c "%a" "$TMPDIR"; touch "$TMPDIR/x"; mkdir -p "$TMPDIR/y"; ls "$TMPDIR"'
    # SLURM gives all tasks /tmp where nothing names another one.
    outside = [{"TMPDIR": "", "SLURM_PROCID": "0"}, {"TMPDIR": "/tmp", "SLURM_PROCID": "1"}]
    ranks = [node.start(script, outside=each, number=number) for number, each in enumerate(outside, 1)]
    paths = []
    for one in ranks:
        path, mode, *names = one.ended().output.splitlines()
        assert (mode, names) == ("700", ["x", "y"])
        paths.append(Path(path))
    assert len(set(paths)) == 2
    assert all(path.is_relative_to(node.local) and not path.exists() for path in paths)
    for number, named in enumerate(("/own", "/tmp"), 3):
        outside = {"TMPDIR": "/of/the/host"}
        own = node.run('echo "$TMPDIR"', environment={"TMPDIR": named}, outside=outside, number=number)
        assert own.output == f"{named}\n"
    host = node.run('echo "$TMPDIR"', outside={"TMPDIR": "/of/the/host"}, number=5)
    assert host.output == "/of/the/host\n"


def test_the_job_of_the_scheduler_is_in_the_log(node):
    variables = {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    one = node.run("echo begun", outside=variables)
    assert one.output == f"dispatcher: note: job 12_3 of SLURM, on {NODE}\nbegun\n"


def test_without_a_work_directory_code_is_extracted_where_others_cannot_write(node):
    node.configure(work="")
    shared, own = node.folder / "shared", node.folder / "own"
    shared.mkdir()
    shared.chmod(0o1777)
    own.mkdir()
    private = node.local / f"dispatcher-{os.getuid()}"
    for tmpdir, expected in ((shared, private), (own, own), (node.folder / "none", private)):
        one = node.run('echo "$PWD"', code=archive_of(CODE), outside={"TMPDIR": os.fspath(tmpdir)})
        assert one.output.splitlines()[-1].startswith(f"{expected}/dispatcher-work/"), one.output
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize(("status", "is_kept"), [(3, True), (75, False)])
def test_the_work_directory_is_kept_after_a_failure(node, status, is_kept):
    one = node.run(f"touch made; exit {status}", code=archive_of(CODE))
    assert one.status == status
    assert bool(list(node.work.glob("dispatcher-work/*/job.1/*/tree/made"))) == is_kept
    assert node.leftovers() == (["job.1"] if is_kept else [])


def test_a_damaged_archive(node):
    code = archive_of(CODE)
    one = node.start("echo the command ran", code=code)
    one.ended()
    (archive,) = node.folder.glob("share it's/*.tar")
    archive.write_bytes(code[:-1])
    damaged = node.run("echo the command ran", number=2, code=code)
    assert (damaged.status, damaged.has_failed_setup) == (1, True)
    assert f"dispatcher: error: {NODE}: the code archive {archive} is damaged" in damaged.output
    assert "the command ran" not in damaged.output


def test_an_archive_that_is_not_there(node):
    one = node.start("true")
    one.ended()
    (one.directory / "code").write_bytes(code_file("0" * 64, "abc", "/nonexistent/it's"))
    again = subprocess.run(["bash", one.script, "true"], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 1
    assert "the code archive /nonexistent/it's is not there or cannot be read" in again.stderr


def test_no_room_for_the_code(node, small_disk):
    node.configure(work=os.fspath(small_disk))
    one = node.run("echo ran", code=archive_of({"big": b"x" * (64 << 20)}))
    assert (one.status, one.has_failed_setup) == (1, True)
    assert "cannot be extracted into" in one.output.splitlines()[-1]
    assert "ran" not in one.output.splitlines()
    assert not list(small_disk.glob("dispatcher-work/*/*")), "what was extracted of it does not fill the disk further"


def test_several_ranks_of_a_node_share_the_tree(node):
    """Extracted once, and removed by the last one."""
    code = archive_of(CODE)
    script = 'echo $SLURM_PROCID >>ranks; until [ "$(wc -l <ranks)" = 2 ]; do sleep 0.02; done; [ "$SLURM_PROCID" = 0 ]'
    first = node.start(f"{script} || until [ -e go ]; do sleep 0.02; done", code=code, outside={"SLURM_PROCID": "1"})
    second = node.run(script, code=code, outside={"SLURM_PROCID": "0"})
    assert second.status == 0
    (tree,) = node.work.glob("dispatcher-work/*/job.1/*/tree")
    (tree / "go").touch()
    assert first.ended().status == 0
    assert first.output.count("dispatcher: note: code") == 1
    assert node.leftovers() == []


def test_the_work_directory_of_another_user_is_not_used(node):
    folder = node.work / "dispatcher-work" / node.setup.work_id
    folder.mkdir(parents=True)
    (folder / "job.1").symlink_to(node.folder)
    one = node.run("true", code=archive_of(CODE))
    assert one.has_failed_setup
    assert "job.1 cannot be made, or is not this user's" in one.output


def test_paths_with_variables_of_the_node(node):
    node.configure(work="$SCRATCH/${NAME}")
    environment = {"SCRATCH": os.fspath(node.work), "NAME": "it's $HOME"}
    one = node.run("pwd", code=archive_of(CODE), environment=environment)
    assert one.output.splitlines()[1].startswith(f"{node.work}/it's $HOME/dispatcher-work/")
    node.configure(work="$ABSENT_HERE/x")
    one = node.run("pwd", number=2, code=archive_of(CODE))
    assert one.has_failed_setup
    assert "$ABSENT_HERE/x: the variable ABSENT_HERE is not set on this node" in one.output


def test_the_setup_runs_in_the_tree(node):
    setup = (
        "source data/vars\nexport HERE=$PWD\necho setting up\nset -u; IFS=/; work_lock=x; status=x; private=x; node=x"
    )
    code = archive_of({"data/vars": "export FROM_TREE='a  b'\n"})
    one = node.run('echo "$FROM_TREE"; [ "$HERE" = "$PWD" ]', code=code, setup=setup)
    assert one.output.splitlines()[1:] == ["setting up", "a  b"]
    assert one.status == 0
    assert node.leftovers() == []


@pytest.mark.parametrize(
    ("setup", "status", "said"),
    [
        ("true\nls /nonexistent", 2, "setup, line 2, exit status 2: ls /nonexistent"),
        ("f() {\n  false\n  return 4\n}\nf", 4, "setup, line 5, exit status 4: f"),
        ("echo 'return 3' >three.sh\n. ./three.sh", 3, "setup, line 2, exit status 3: . ./three.sh"),
        ("exit 0", 1, "error: setup: it ended its shell with exit status 0 before the command (last line: "),
        ("echo so far; exec true", 1, "exit status 0 before the command (last line: so far)"),
        ("set -u\necho $NO_SUCH", 1, "NO_SUCH: unbound variable)"),
        ("if true; then", 2, "syntax error"),
        ("true\nreturn 5", 5, "setup: exit status 5"),
    ],
)
def test_a_setup_that_fails(node, setup, status, said):
    one = node.run("echo the command ran", setup=setup, code=archive_of(CODE))
    assert (one.status, one.has_failed_setup) == (status, True)
    assert said in one.output
    assert "the command ran" not in one.output


def test_a_trap_of_the_setup_runs_when_the_command_has_ended(node):
    setup = "S=own; clean() { echo cleaned $S after $?; exit 0; }; trap clean EXIT"
    one = node.run("echo ran; exit 3", setup=setup)
    assert (one.status, one.output) == (3, "ran\ncleaned own after 3\n")
    absent = node.run("", number=2, arguments=["no such program"], setup=setup)
    assert (absent.status, absent.has_failed_setup) == (127, False)
    assert absent.output.endswith("cleaned own after 127\n")
    assert node.leftovers() == []


def test_a_setup_that_is_stopped_has_not_failed(node):
    one = node.start("echo the command ran", setup="echo ready\nsleep 60").says("ready")
    one.tell_group()
    one.ended()
    assert (one.status, one.has_failed_setup, one.first) == (143, False, "signal TERM")
    assert "the command ran" not in one.output


def test_locks_of_another_user_are_not_used(node):
    (node.local / f"dispatcher-{os.getuid()}").symlink_to(node.folder)
    one = node.run("echo ran")
    assert (one.status, one.has_failed_setup) == (1, True)
    assert "is not a directory of this user" in one.output


def test_a_killed_script_leaves_locks_that_the_next_one_can_take(node):
    one = node.start("echo ready; sleep 60", code=archive_of(CODE)).says("ready")
    one.tell_group(signal.SIGKILL)
    one.ended()
    again = node.run("echo again", code=archive_of(CODE))
    assert again.status == 0
    assert node.leftovers() == []


def test_locks_of_scripts_that_were_killed_long_ago_are_removed(node):
    """And those of one that runs are not."""
    code = archive_of(CODE)
    killed = node.start("echo ready; sleep 60", number=1, code=code).says("ready")
    killed.tell_group(signal.SIGKILL)
    killed.ended()
    runs = node.start("echo ready; sleep 60", number=2, code=code).says("ready")
    for path in node.local.glob("dispatcher-*/work-*"):
        os.utime(path, (0, 0))
    assert node.run("true", number=3).status == 0
    left = sorted(path.name for path in node.local.glob("dispatcher-*/work-*"))
    assert left == [f"work-{node.setup.work_id}-job.2.lock", f"work-{node.setup.work_id}-job.2.users"]
    runs.tell_group()
    assert runs.ended().status == 143


@pytest.mark.skipif(not MODULES.exists(), reason="needs the package environment-modules")
class TestModules:
    @pytest.fixture(autouse=True)
    def modules(self, node, tmp_path):
        folder = tmp_path / "module files"
        folder.mkdir()
        (folder / "cuda it's").write_text("#%Module1.0\nsetenv CUDA_HOME {/opt/cuda it's}\nsetenv OURS module\n")
        node.configure(modules=("cuda it's",), env={"MODULEPATH": os.fspath(folder), "OURS": "configured"})
        for name in [name for name in node.environment if "MODULE" in name or name.startswith("BASH_FUNC")]:
            del node.environment[name]

    def test_modules_are_loaded_and_configured_variables_have_the_last_word(self, node):
        one = node.run('echo "$CUDA_HOME $OURS"')
        assert (one.status, one.output) == (0, "/opt/cuda it's configured\n")

    def test_a_missing_module_is_named(self, node):
        node.configure(modules=("cuda it's", "nccl/2.19"))
        one = node.run("echo ran")
        assert (one.status, one.has_failed_setup) == (1, True)
        assert one.output.splitlines()[-1].startswith(f"dispatcher: error: {NODE}: module nccl/2.19 cannot be loaded")
        assert "nccl/2.19" in one.output.splitlines()[0]

    def test_a_function_that_reports_errors_with_status_0(self, node, tmp_path):
        """As Environment Modules 3 does."""
        init = tmp_path / "init"
        init.mkdir()
        said = "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for 'x'"
        (init / "bash").write_text(f'module() {{ echo "{said}" >&2; }}\n')
        one = node.run("echo ran", outside={"MODULESHOME": os.fspath(tmp_path)})
        assert one.has_failed_setup
        assert said in one.output


def test_no_module_command(node, tmp_path):
    node.configure(modules=("cuda",))
    script = [
        "unshare",
        "--mount",
        "bash",
        "-c",
        'for d in /etc/profile.d /usr/share/modules; do mount -t tmpfs x $d; done; exec "$@"',
        "x",
    ]
    one = node.run("echo ran")
    if MODULES.exists():
        if os.getuid() != 0:
            pytest.skip("this host has modules")
        done = subprocess.run([*script, "bash", one.script, "true"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "module cuda: there is no module command on this host" in done.stderr
    else:
        assert "module cuda: there is no module command on this host" in one.output


def test_a_full_group_is_over_when_the_script_is(node):
    one = node.run("echo done", code=archive_of(CODE))
    wait_until(lambda: not members(one.process.pid), "nothing of the group is left")


def members(group: int) -> list[str]:
    found = subprocess.run(["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True, check=False)
    return [state for state in found.stdout.split() if not state.startswith("Z")]
