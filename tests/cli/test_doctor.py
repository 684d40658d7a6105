"""`dispatcher doctor` on a filesystem of this host, and `--repair`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from small_disks import small_disk_at

from dispatcher.cli.main import main
from dispatcher.doctor.checks import examine
from dispatcher.doctor.findings import WRONG
from dispatcher.workspace import Layout


def diagnose(lab: Any, *args: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = lab.run("doctor", "--json", "--peer-wait", "0", *args)
    return done.code, {finding["check"]: finding for finding in done.json["findings"]}


def wrong(found: dict[str, dict[str, Any]]) -> list[str]:
    return [check for check, finding in found.items() if finding["verdict"] == "wrong"]


def test_all_is_well_and_nothing_changes(lab: Any) -> None:
    lab.put("base", "done")
    before = {path: seen for path, seen in lab.snapshot().items() if path not in ("", ".", "run_state")}
    code, found = diagnose(lab)
    assert (code, wrong(found)) == (0, [])
    assert found["journal"]["what"].endswith("1 records, line 3")
    assert found["manifest"]["what"].endswith("9 jobs")
    assert found["flock here"]["verdict"] == "ok"
    assert found["lock latency"]["value"] > 0
    assert found["kind of lock"]["what"].startswith("flock")
    assert {path: seen for path, seen in lab.snapshot().items() if path not in ("", ".", "run_state")} == before


def test_people_get_a_table_and_the_cures_below_it(lab: Any) -> None:
    lab.layout.run_state.mkdir()
    lab.layout.status_file.write_text("{")
    done = lab.run("doctor", "--peer-wait", "0")
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0].split() == ["check", "verdict", "what"]
    assert any(line.split()[:3] == ["status", "file", "wrong"] for line in lines)
    assert "status file: correct it, or `dispatcher status --restore`" in lines


def test_a_full_disk_is_named_with_all_other_findings(tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "full", "size=256k") as root:
        (root / "matrix").mkdir()
        with pytest.raises(OSError, match="No space left"):
            (root / "ballast").write_bytes(bytes(1 << 20))
        found = {finding.check: finding for finding in examine(Layout(root), 0.0, lambda _: None)}
    assert found["disk space"].verdict == WRONG
    assert found["locks"].verdict == WRONG
    assert "No space left on device" in found["locks"].what
    assert "python" in found


def test_a_workspace_in_which_nothing_has_run_is_left_empty(lab: Any) -> None:
    code, found = diagnose(lab)
    assert (code, wrong(found)) == (0, [])
    assert found["journal"]["what"].startswith("there is none yet")
    assert not lab.layout.run_state.exists()


def test_a_broken_configuration_and_manifest_are_named(lab: Any) -> None:
    lab.layout.config_file.write_text("lokc: auto\n")
    assert wrong(diagnose(lab)[1]) == ["config"]
    lab.layout.config_file.write_text("lock: auto\n")
    lab.layout.default_matrix.write_text('[{"job_id": "a"}]')
    assert wrong(diagnose(lab)[1]) == ["manifest"]


def test_another_kind_of_lock_than_the_workspace_uses(lab: Any) -> None:
    lab.put("base", "done")
    lab.layout.config_file.write_text("lock: lockf\n")
    code, found = diagnose(lab)
    assert code == 1
    assert "this workspace uses flock" in found["journal"]["what"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anything")
def test_what_this_user_may_not_write(lab: Any) -> None:
    lab.put("base", "done")
    lab.layout.lock_file.chmod(0o400)
    code, found = diagnose(lab)
    assert code == 1
    assert "claims.lock" in found["permissions"]["what"]


def test_a_cut_journal_is_wrong_until_it_is_repaired(lab: Any) -> None:
    lab.put("base", "done")
    lab.put("fft_german_s1", "failed")
    path = lab.layout.journal(1)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    lab.workspace.store.close()
    before = path.read_bytes()
    code, found = diagnose(lab)
    assert code == 1
    assert "journal" in wrong(found)
    assert "--repair" in found["journal"]["cure"]
    assert path.read_bytes() == before

    done = lab.run("doctor", "--repair", "--peer-wait", "0")
    assert done.code == 0, done.out
    assert "was copied to" in done.out
    assert json.loads(lab.run("status", "--json").out)["counts"]["failed"] == 1
    assert diagnose(lab)[0] == 0


def test_there_may_be_nothing_to_repair(lab: Any) -> None:
    lab.put("base", "done")
    done = lab.run("doctor", "--repair", "--peer-wait", "0", "--json")
    assert done.code == 0
    assert done.json["repaired"] == ["the journal is undamaged: nothing to repair"]


def test_two_doctors_find_each_other(lab: Any, until: Callable[..., None]) -> None:
    """Two hosts by name only; on real ones the same is tested with the beds."""
    args = ("doctor", "--json", "--peer-wait", "60")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    doctors = [lab.start(*args, env={"DISPATCHER_HOST": name}, **pipes) for name in ("one", "two")]
    answers = [doctor.communicate(timeout=120) for doctor in doctors]
    assert [doctor.returncode for doctor in doctors] == [0, 0], answers
    one, two = ({f["check"]: f for f in json.loads(out)["findings"]} for out, _ in answers)
    assert (one["other host"]["what"], two["other host"]["what"]) == ("two answers", "one answers")
    same = {"flock between hosts", "lockf between hosts", "hard-link lock between hosts", "mkdir race", "hand-over"}
    assert {check: one[check] for check in same} == {check: two[check] for check in same}
    assert one["transactions"]["verdict"] == "ok"
    assert not lab.layout.run_state.exists()


def test_what_a_killed_doctor_left_is_removed(lab: Any, until: Callable[..., None]) -> None:
    doctor = lab.start("doctor", "--peer-wait", "60", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    place: Path = lab.layout.doctor_dir
    until(lambda: place.is_dir() and any(name.suffix == ".hello" for name in place.iterdir()), "the doctor waits")
    doctor.kill()
    doctor.wait()
    assert diagnose(lab)[0] == 0
    assert not place.exists()


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    assert "--repair" in capsys.readouterr().out


def test_any_directory_is_examined_when_it_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    words = [*commands.COMMAND, "doctor", "--json", "--peer-wait", "0", "--root", os.fspath(bare)]
    done = commands.run(words, capture_output=True, text=True, check=False)
    verdicts = {finding["check"]: finding["verdict"] for finding in json.loads(done.stdout)["findings"]}
    assert verdicts["flock here"] == "ok"
    assert list(bare.iterdir()) == []
    assert commands.run([*words, "--repair"], capture_output=True, check=False).returncode == 2
