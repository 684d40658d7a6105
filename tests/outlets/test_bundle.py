"""What an attempt is started from: rendered without a workspace, and delivered into one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dispatcher import contract
from dispatcher.config import Config, Method
from dispatcher.errors import StorageError, TemplateError
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.assignment import Assignment
from dispatcher.outlets.base import Bundle, Key, Request, Site, Slot
from dispatcher.outlets.bundle import deliver, entry_bundle, render
from dispatcher.workspace import Layout

# A workspace that is not there: rendering reads the templates and nothing else.
ROOT = Path("/nonexistent/a'; echo foo")
DIRECTORY = ROOT / "run_state" / "jobs" / "a" / "2"
WORDS = ("bash", "-c", "echo {lr}")


def assigned(entry: Entry) -> Assignment:
    slot = Slot((3,))
    return Assignment(entry=entry, key=Key("a", 2), pod="pod-0", request=Request(1), slot=slot)


def rendered(method: Method | None = None, command: Any = WORDS, layout: Layout | None = None, **words: Any) -> Bundle:
    layout = layout or Layout(ROOT)
    method = method or Method(name="m", template=ROOT / "none.py")
    config = Config(layout=layout, matrix=ROOT / "m.json", methods={"m": method}, kill_grace_s=2.5, lost_after_s=60.0)
    entry = Entry(job_id="a", method="m", command=command, params={"lr": 0.5}, time_limit_s=90.0, **words)
    slot_environment = {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": None}
    site = Site(layout=layout, group_may_write=False, environment=slot_environment)
    return render(config, assigned(entry), site)


def lines(bundle: Bundle) -> list[str]:
    return bundle.files[contract.WRAPPER_FILE].decode().splitlines()


def away(**words: Any) -> Bundle:
    """Rendered for a host that does not see the workspace."""
    layout = Layout("/mirror")
    config = Config(layout=Layout(ROOT), matrix=ROOT / "m.json", methods={"m": Method(name="m", template=ROOT / "x")})
    directories = {"root": "/big/0123456789ab", "checkpoints": "gs://lab/it's"}
    site = Site(layout=layout, group_may_write=False, launcher="node.sh", is_shared=False, directories=directories)
    return render(config, assigned(Entry(job_id="a", method="m", **words)), site)


def test_a_job_class_has_a_bootstrap_where_the_workspace_is_not_seen() -> None:
    bundle = away(job="lab/x", config={"lr": 0.5})
    names: dict[str, Any] = {"__name__": "rendered"}
    exec(bundle.files[contract.BOOTSTRAP_FILE], names)
    assert names["PARAMS"] == {
        "entry": {"job_id": "a", "method": "m", "job": "lab/x", "config": {"lr": 0.5}},
        "hardware": {"gpus": 1, "chip": "", "root": "/big/0123456789ab", "checkpoints": "gs://lab/it's"},
        "identity": {"job_id": "a", "attempt": 2, "pod": "pod-0"},
    }
    directory = "/mirror/run_state/jobs/a/2"
    command = f"dispatcher_command=(bash {directory}/node.sh python {directory}/bootstrap.py)"
    assert command in [line.replace("'", "") for line in lines(bundle)]


def test_other_jobs_have_none(tmp_path: Path) -> None:
    assert contract.BOOTSTRAP_FILE not in away(command=WORDS[:2]).files
    assert contract.BOOTSTRAP_FILE not in away(command=WORDS[:2], job="lab/x").files, "its own command runs it"
    assert contract.BOOTSTRAP_FILE not in rendered(command=None, job="lab/x").files, "the workspace is seen"


def test_the_whole_of_it() -> None:
    bundle = rendered()
    assert (bundle.key, bundle.request, bundle.slot) == (Key("a", 2), Request(1), Slot((3,)))
    assert set(bundle.files) == {"entry.json", "job.sh"}
    assert bundle.shared_files == {}
    assert bundle.environment == {"DISPATCHER_ATTEMPT_DIR": os.fspath(DIRECTORY)}
    entry = json.loads(bundle.files["entry.json"])
    assert (entry["job_id"], entry["lr"], entry["command"]) == ("a", 0.5, list(WORDS))
    quoted = "'" + os.fspath(ROOT).replace("'", "'\"'\"'")
    wrapper = lines(bundle)
    assert wrapper[0] == "#!/bin/bash"
    assert f"directory={quoted}/run_state/jobs/a/2'" in wrapper
    assert "time_limit_s=90" in wrapper
    assert "grace_s=3" in wrapper
    assert "watch_s=15" in wrapper
    assert "dispatcher_command=(bash -c 'echo 0.5')" in wrapper
    assert "unset CUDA_DEVICE_ORDER" in wrapper
    assert f"cd -- {quoted}'" in wrapper
    assert "umask g=rwx" not in wrapper


def test_the_environment_of_the_job() -> None:
    method = Method(name="m", template=ROOT / "none.py", env={"A": "method", "B": "method"})
    (exports,) = [line for line in lines(rendered(method, env={"B": "entry"})) if line.startswith("export ")]
    for word in (
        "A=method",
        "B=entry",
        "CUDA_VISIBLE_DEVICES=3",
        "DISPATCHER_JOB_ID=a",
        "DISPATCHER_ATTEMPT=2",
        "DISPATCHER_POD=pod-0",
        "DISPATCHER_KILL_GRACE_S=3",
    ):
        assert f"'{word}'" in exports


def test_an_attempt_without_gpus_sees_none_wherever_it_runs() -> None:
    """Where a scheduler keeps none from those that ask for none."""
    config = Config(layout=Layout(ROOT), matrix=ROOT / "m.json", methods={"m": Method(name="m", template=ROOT / "x")})
    site = Site(layout=Layout(ROOT), group_may_write=False, gpus=1)
    entry = Entry(job_id="a", method="m", command=WORDS, params={"lr": 0.5})
    for gpus, shown in ((0, True), (None, False), (2, False)):
        asked = msgspec.structs.replace(assigned(entry), request=Request(gpus), slot=Slot())
        (exports,) = [line for line in lines(render(config, asked, site)) if line.startswith("export ")]
        assert (" CUDA_VISIBLE_DEVICES= " in exports.replace("'", "")) is shown


def test_the_same_claim_gives_the_same_bundle() -> None:
    assert rendered() == rendered()


def test_a_training_script_is_shared_by_all_attempts_of_its_job(tmp_path: Path) -> None:
    template = tmp_path / "t.py"
    template.write_text("PARAMS = {'lr': ...}\n")
    bundle = rendered(Method(name="m", template=template), command="python {script}")
    assert bundle.shared_files == {"run_state/m_scripts/train_a.py": b"PARAMS = {\n    'lr': 0.5,\n}\n"}
    assert any("run_state/m_scripts/train_a.py" in line for line in lines(bundle))


def test_a_setup_is_a_file_of_its_own() -> None:
    bundle = rendered(Method(name="m", template=ROOT / "none.py", setup="module load cuda"))
    assert bundle.files["setup.sh"] == b"module load cuda\ndispatcher_setup_is_read=1\n"


def test_what_cannot_be_rendered_is_the_entrys_fault() -> None:
    with pytest.raises(TemplateError, match="absent"):
        rendered(command="echo {absent}")


def delivered(tmp_path: Path, bundle: Bundle) -> Layout:
    layout = Layout(tmp_path)
    layout.attempt("a", 2).directory.mkdir(parents=True, exist_ok=True)
    deliver(bundle, layout)
    return layout


def test_delivery(tmp_path: Path) -> None:
    template = tmp_path / "t.py"
    template.write_text("PARAMS = {'lr': 1}\n")
    bundle = rendered(Method(name="m", template=template), "python {script}", Layout(tmp_path))
    for _ in range(2):
        layout = delivered(tmp_path, bundle)
    directory = layout.attempt("a", 2).directory
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == bundle.files
    assert layout.attempt("a", 2).wrapper.stat().st_mode & stat.S_IXUSR
    assert not layout.attempt("a", 2).entry.stat().st_mode & stat.S_IXUSR
    assert [path.name for path in layout.method_scripts("m").iterdir()] == ["train_a.py"], "a temporary file is left"


def test_delivery_that_fails_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "run_state" / "jobs" / "a" / "2" / "job.sh").mkdir(parents=True)
    with pytest.raises(StorageError, match="jobs/a/2"):
        delivered(tmp_path, rendered(layout=Layout(tmp_path)))


def test_the_entry_alone() -> None:
    """What is left of an attempt that cannot be rendered: reports show what it would have run with."""
    entry = Entry(job_id="a", method="m", command=WORDS, params={"lr": 0.5})
    bundle = entry_bundle(assigned(entry))
    assert set(bundle.files) == {"entry.json"}
    assert bundle.files["entry.json"] == rendered_entry(entry)


def rendered_entry(entry: Entry) -> bytes:
    return json.dumps(entry.document(), ensure_ascii=False, indent=1).encode() + b"\n"
