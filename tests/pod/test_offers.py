"""What an attempt asks its outlet for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import Config, load_config
from dispatcher.hosts.types import PbsOptions, SlurmOptions
from dispatcher.matrix.entry import Entry, read_entry
from dispatcher.pod.offers import request_of
from dispatcher.workspace import Layout

CONFIG = """
methods:
  big:
    gpus: 8
    slurm: {partition: big, slots_per_node: 4, sbatch_args: [--nice]}
    pbs: {pbsbatch_args: -m n}
"""


def config(root: Path, text: str = CONFIG) -> Config:
    (root / "dispatcher.yaml").write_text(text)
    return load_config(Layout(root))


def entry(**keys: Any) -> Entry:
    found, faults = read_entry({"job_id": "a", "method": "big", **keys}, 0, "ada")
    assert found is not None and not faults
    return found


def test_what_a_method_and_an_entry_say_for_a_scheduler(tmp_path: Path) -> None:
    """What the entry sets counts, and arguments of both are given."""
    of_method = request_of(config(tmp_path), entry())
    assert of_method.slurm == SlurmOptions(partition="big", slots_per_node=4, sbatch_args=("--nice",))
    assert of_method.pbs == PbsOptions(pbsbatch_args=("-m", "n"))
    both = request_of(
        config(tmp_path),
        entry(slurm={"partition": "small", "gpu_type": "a", "sbatch_args": "--exclusive"}, pbs={"queue": "q"}),
    )
    assert both.slurm == SlurmOptions(
        partition="small", gpu_type="a", slots_per_node=4, sbatch_args=("--nice", "--exclusive")
    )
    assert both.pbs == PbsOptions(queue="q", pbsbatch_args=("-m", "n"))
    assert request_of(config(tmp_path, ""), entry()).slurm is None


@pytest.mark.parametrize(
    ("source", "keys", "projects"),
    [
        ("user", {}, (("user", "ada"),)),
        ("label:team", {"team": "speech"}, (("label:team", "speech"),)),
        ("label", {"label": 7}, (("label", "7"),)),
        ("label", {}, ()),
        # It is the same for all jobs.
        ("workspace", {}, ()),
    ],
)
def test_the_project_of_a_job(
    tmp_path: Path, source: str, keys: dict[str, Any], projects: tuple[tuple[str, str], ...]
) -> None:
    hosts = f"hosts: {{a: {{type: pbs, job_project_source: '{source}'}}, b: {{type: plain, ssh: b}}}}\n"
    assert request_of(config(tmp_path, hosts), entry(**keys)).projects == projects
