"""Where a job runs and where its files go."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from dispatcher.errors import StorageError, UsageError
from dispatcher.runtime.execution import ExecutionSpec, Topology, local


def test_the_devices_that_are_there(tmp_path: Path) -> None:
    spec = local(tmp_path, "run")
    assert spec.hardware.devices == len(jax.devices()) and spec.hardware.processes == 1
    assert (spec.hardware.platform, spec.distributed) == ("cpu", False)
    assert spec.topology is not None
    assert spec.topology.devices == tuple(jax.devices())
    assert spec.hardware.cluster.checkpoints == str(tmp_path / "checkpoints")
    assert local(tmp_path, "run", checkpoints="s3://bucket/x").hardware.cluster.checkpoints == "s3://bucket/x"
    assert not list(tmp_path.iterdir())


def test_a_mesh_keeps_tensor_groups_together() -> None:
    code = (
        "import jax; jax.config.update('jax_platforms', 'cpu'); jax.config.update('jax_num_cpu_devices', 8)\n"
        "from dispatcher.runtime.execution import Topology\n"
        "from dispatcher.runtime.training.placement import make_mesh\n"
        "mesh = make_mesh(Topology.detect(2), {})\n"
        "print(dict(mesh.shape), [[d.id for d in row] for row in mesh.devices])\n"
        "try: Topology.detect(3)\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "{'data': 4, 'tensor': 2} [[0, 1], [2, 3], [4, 5], [6, 7]]",
        "tensor_shards = 3: 8 devices: expected one of 1, 2, 4, 8",
    ]


def test_names_are_folders(tmp_path: Path) -> None:
    assert local(tmp_path, "run").relative_path.parts == ("default", "default", "run")
    assert local(tmp_path, "run", "project", "group").relative_path.parts == ("project", "group", "run")
    for bad in ("", "..", "a/b"):
        with pytest.raises(UsageError, match="expected a folder name"):
            local(tmp_path, bad)
        with pytest.raises(UsageError, match="project = "):
            local(tmp_path, "run", project=bad)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("x" * 201, "at most 200 bytes; this one has 201"),
        ("\u00e9" * 101, "at most 200 bytes; this one has 202"),
        ("two\nlines", "without line breaks and other control characters"),
        ("nul\0", "without line breaks and other control characters"),
        ("caf\udce9", "expected a folder name in UTF-8"),
    ],
)
def test_names_that_a_filesystem_or_a_file_cannot_hold(tmp_path: Path, bad: str, problem: str) -> None:
    assert local(tmp_path, "\u00e9" * 100).name == "\u00e9" * 100
    for words in ((bad,), ("run", bad), ("run", "project", bad)):
        with pytest.raises(UsageError, match=problem) as caught:
            local(tmp_path, *words)
        str(caught.value).encode()


def test_a_result_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    spec = local(tmp_path, "run", "p", "g")
    path = tmp_path / "results" / "p" / "g" / "run" / "plots" / "table.csv"
    assert spec.result_path("plots/table.csv") == path
    with spec.result("plots/table.csv") as file:
        assert file is not None
        file.write("one")
        assert not path.exists()
    assert path.read_text() == "one"
    with pytest.raises(RuntimeError), spec.result("plots/table.csv") as file:
        assert file is not None
        file.write("two")
        raise RuntimeError
    with spec.result("raw", mode="wb") as file:
        assert file is not None
        file.write(b"\x00")
    assert path.read_text() == "one" and spec.result_path("raw").read_bytes() == b"\x00"
    assert [entry.name for entry in path.parent.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../other/result.json", "."])
def test_a_result_stays_below_the_results(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="expected a file name"):
        local(tmp_path, "run").result_path(name)


def test_other_processes_write_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec: ExecutionSpec = local(tmp_path, "run")
    monkeypatch.setattr(jax, "process_index", lambda: 2)
    with spec.result("table.json") as file:
        assert file is None
    assert not (tmp_path / "results").exists()
    with spec.result("table.json", main_process_only=False) as file:
        assert file is not None
        file.write("{}")
    assert spec.result_path("table.2.json").read_text() == "{}"


def test_a_mesh_needs_devices() -> None:
    with pytest.raises(UsageError, match="tensor_shards = 1: 0 devices"):
        Topology(())


def test_a_result_on_a_full_disk(small_disk: Path) -> None:
    spec = local(small_disk, "run")
    with spec.result("kept.txt") as file:
        assert file is not None
        file.write("before")
    for size in (100, 4_000_000):
        with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
        with (
            pytest.raises(
                StorageError, match=r"kept\.txt: cannot be written: No space left on device; the disk is full"
            ),
            spec.result("kept.txt") as file,
        ):
            assert file is not None
            file.write("x" * size)
    assert spec.result_path("kept.txt").read_text() == "before"
    assert [path.name for path in spec.result_path("kept.txt").parent.iterdir()] == ["kept.txt"]


def test_an_error_of_the_block_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), local(tmp_path, "run").result("x.txt"):
        (tmp_path / "nowhere").read_text()
