"""dispatcher.yaml: defaults, what may be written, and that every fault is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.base.running_limits import RunningLimit
from dispatcher.config import CodeMode, load_config
from dispatcher.errors import ConfigError
from dispatcher.hosts.types import Container
from dispatcher.workspace import Layout


def written(tmp_path: Path, text: str | bytes) -> Layout:
    (tmp_path / "dispatcher.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return Layout(tmp_path)


def faults(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, text))
    assert str(caught.value).startswith(str(tmp_path / "dispatcher.yaml"))
    return str(caught.value)


@pytest.mark.parametrize("text", [None, "", "# nothing yet\n", "methods:\n"])
def test_without_settings_the_defaults_hold(tmp_path: Path, text: str | None) -> None:
    config = load_config(Layout(tmp_path) if text is None else written(tmp_path, text))
    assert config.matrix == tmp_path / "matrix" / "matrix.json" and config.lock == "auto"
    assert (config.poll_interval_s, config.heartbeat_s, config.lost_after_s) == (30, 2, 600)
    assert (config.kill_grace_s, config.max_requeues, config.code) == (75, 20, CodeMode.SHIP)
    method = config.method("fft")
    assert method.template == tmp_path / "templates" / "train_fft.py"
    assert method.command == ("{python}", "{script}")


def test_everything_that_may_be_written(tmp_path: Path) -> None:
    config = load_config(
        written(
            tmp_path,
            """
matrix: other.json
lock: hardlink
poll_interval: 10m
heartbeat: 1s
lost_after: 120
kill_grace: 1m30s
max_requeues: 3
code: dirty
limits:
- {per: lang, max_running: 2}
- {where: [lang=greek, seed!=1], max_running: 3}
methods:
  fft:
    template: /abs/train.py
    command: python {script} --x "a b"
    time_limit: 1:30:00
    env: {TOKENIZERS_PARALLELISM: "false", OMP_NUM_THREADS: 2}
    gpus: 2
    retries: 3
    retry_on: out of memory
    backoff: 5m
    on_lost: fail
    resources: {chip: h100, min_chips: 8, nodes: 2}
    container: {runtime: apptainer, image: a.sif}
    queue_limit: 30m
    pack: 8
    on_move: restart
    max_running: 4
    setup: |
      module load cuda/12.4
      source "it's here"/activate
    python: envs/asr
  lora: {command: [run, "{lang}"], template: t.py, python: ~/env}
  plain:
""",
        )
    )
    assert config.matrix == tmp_path / "other.json" and config.lock == "hardlink"
    assert (config.poll_interval_s, config.lost_after_s, config.kill_grace_s) == (600, 120, 90)
    assert config.code is CodeMode.DIRTY
    assert config.limits == (RunningLimit(2, "lang"), RunningLimit(3, where=("lang=greek", "seed!=1")))
    assert (config.method("fft").max_running, config.method("lora").max_running) == (4, None)
    fft = config.method("fft")
    assert fft.template == Path("/abs/train.py") and fft.time_limit_s == 5400 and fft.backoff_s == 300
    assert fft.env == {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "2"}
    assert (fft.gpus, fft.retries, fft.retry_on) == (2, 3, ("out of memory",))
    assert fft.setup == 'module load cuda/12.4\nsource "it\'s here"/activate\n'
    assert fft.python == tmp_path / "envs" / "asr" and config.method("lora").python == Path.home() / "env"
    assert (fft.on_lost, fft.on_preempted) == ("fail", "requeue")
    assert fft.resources["nodes"] == 2 and fft.container == Container(runtime="apptainer", image="a.sif")
    assert (fft.queue_limit_s, fft.pack, fft.on_move) == (1800, 8, "restart")
    lora = config.method("lora")
    assert (lora.container, lora.queue_limit_s, lora.pack, lora.on_move) == (None, None, 1, "stay")
    assert config.method("lora").command == ("run", "{lang}") and config.method("lora").template == tmp_path / "t.py"
    assert config.method("plain").template == tmp_path / "templates" / "train_plain.py"


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    text = faults(
        tmp_path,
        """
poll_intervall: 3
lock: no
kill_grace: soon
max_requeues: -1
clusterz: {}
code: shipp
methods:
  fft:
    time_limt: 8h
    env: {A: false}
    on_lost: requeu
    on_preempted: true
    on_move: start
    pack: 0
    queue_limit: soon
    container: {runtime: docker}
    resources: {nodes: 0}
    command: python 'a
  "a/b": {}
  7: {}
  lora: [1]
""",
    )
    for expected in (
        "20 problems",
        "poll_intervall: unknown key (did you mean 'poll_interval'?)",
        'lock = "no": expected one of auto, flock, lockf, hardlink',
        'kill_grace = "soon": expected a time such as 90m',
        "max_requeues = -1: expected a whole number, 0 or more",
        "clusterz: unknown key (did you mean 'clusters'?)",
        'code = "shipp": expected one of ship, dirty, none',
        "methods.fft.time_limt: unknown key (did you mean 'time_limit'?)",
        "methods.fft.env = ",
        "methods.fft.command = ",
        "methods.fft.on_lost = \"requeu\": expected requeue or fail (did you mean 'requeue'?)",
        "methods.fft.on_preempted = true: expected requeue or fail",
        "methods.fft.on_move = \"start\": expected stay or restart (did you mean 'restart'?)",
        'methods.fft.queue_limit = "soon": expected a time such as 90m',
        "methods.fft.pack = 0: expected a whole number, 1 or more",
        "methods.fft.container.image: is missing",
        'methods.fft.container.runtime = "docker": expected one of',
        "methods.fft.resources.nodes = 0: expected a whole number, 1 or more",
        "methods.a/b: the name cannot be used",
        "methods.7: the name cannot be used; quote a number",
        "methods.lora = [1]: expected keys",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2", "line 2, column 1: duplicate key 'a'"),
        ("a: [", "line 1"),
        ("- a", "expected keys and values"),
        (b"matrix: \xff", "the byte 0xff is not UTF-8"),
        ("methods: 3", "methods = 3: expected names of methods"),
        ("lost_after: 3s", "expected at least five heartbeats of 2 s"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert expected in faults(tmp_path, text)


def test_yaml_is_loaded_only_for_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; from dispatcher.config import load_config; from dispatcher.workspace import Layout;"
        "load_config(Layout(sys.argv[1])); print('yaml' in sys.modules)"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "False\n"
    written(tmp_path, "lock: auto")
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "True\n"


def test_what_attempts_ran_from_is_recorded_unless_it_is_switched_off(tmp_path: Path) -> None:
    config = load_config(Layout(tmp_path))
    assert config.provenance
    assert "XLA_FLAGS" in config.provenance_env
    config = load_config(written(tmp_path, "provenance: false\nprovenance_env: [XLA_FLAGS, NCCL_*]\n"))
    assert not config.provenance
    assert config.provenance_env == ("XLA_FLAGS", "NCCL_*")
    text = faults(tmp_path, "provenance: maybe\nprovenance_env: [WANDB_API_KEY]\n")
    assert 'provenance = "maybe": expected true or false' in text
    assert "WANDB_API_KEY looks like a secret, which is never recorded: remove it" in text
    assert "is not the name of a variable" in faults(tmp_path, "provenance_env: ['*']\n")
    assert "expected names" in faults(tmp_path, "provenance_env: 3\n")
