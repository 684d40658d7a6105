"""Golden files of node.sh: hostile values everywhere, read by bash, and nothing in them that bash 4.2 does not know."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from golden_texts import check_golden
from hostile_words import HOSTILE_WORDS

from dispatcher.hosts.types import Container
from dispatcher.outlets.node.script import GpuWatch, NodeJob, render_node
from dispatcher.outlets.node.setup import JuiceFS, NodeSetup
from dispatcher.workspace import Layout

ROOT = "/lab/a'; echo foo $(touch pwned)"
JOB = NodeJob(
    root=ROOT,
    directory=f"{ROOT}/run_state/jobs/fft_s42/3",
    label="fft_s42.3",
    environment={"CUDA_DEVICE_ORDER": None, **{f"WORD_{n}": word for n, word in enumerate(HOSTILE_WORDS)}},
    uses_gpus=True,
    group_may_write=True,
    watch=GpuWatch(gpus=2, interval_s=0.25),
)
BARE = NodeSetup(work_id="0123456789ab")
FULL = NodeSetup(
    work_id="0123456789ab",
    modules=("cuda/12.4", "it's; rm -rf x"),
    env={"MODULEPATH": "/sw/$(id)"},
    juicefs=JuiceFS(
        url="redis://:@meta:6379/1",
        root="/mnt/it's",
        password="s3cret",
        cache_size="1024",
        cache_dir="$SCRATCH/juice",
        all_squash="1000:1000",
    ),
    uv_dir="/scratch/uv 'dir'",
    uv_installer="https://example.org/it's.sh",
    uv_groups=("gpu", "-x;y"),
    work="$SCRATCH/it's work",
    images="/share/it's/images",
    directories=("/data/it's", "~/results"),
)
SQUASHED = msgspec.structs.replace(FULL, work="/scratch", images="/share/images", directories=("/data",))


def contained(setup: NodeSetup, runtime: str, image: str) -> NodeSetup:
    container = msgspec.convert(
        {"runtime": runtime, "image": image, "mounts": ["/d$(id)"], "options": ["--x=it's $(id)"]}, Container
    )
    return msgspec.structs.replace(setup, container=container)


def full_job(root: str) -> NodeJob:
    return msgspec.structs.replace(JOB, root=root, directory=f"{root}/run_state/jobs/fft_s42/3", has_setup=True)


CASES = {
    "node_bare": (BARE, JOB),
    "node_full": (FULL, msgspec.structs.replace(full_job(ROOT), syncs=True)),
    "node_apptainer": (contained(FULL, "apptainer", "docker://it's/jax:1"), full_job(ROOT)),
    "node_podman": (contained(FULL, "podman", "quay.io/it's:1"), full_job(ROOT)),
    "node_podman_rocm": (msgspec.structs.replace(contained(BARE, "podman", "x"), gpus="rocm"), JOB),
    "node_enroot": (
        contained(SQUASHED, "enroot", "docker://it's/jax:1"),
        msgspec.structs.replace(full_job("/lab/it's"), environment={"A": "$(id)"}),
    ),
}
# The one whose differences from the others are least.
BASE = "node_apptainer"
# What came after 4.2, which login nodes of CentOS 7 have.
NEWER = {
    "${x@Q} (4.4)": r"@[QEPAKakULu]\}",
    "wait -n (4.3)": r"\bwait -[nfp]",
    "references to names (4.3)": r"\b(local|declare|typeset) -[a-zA-Z]*n",
    "mapfile -d (4.4)": r"\b(mapfile|readarray)\b[^\n]* -d",
    "negative subscripts that are set or unset (4.3)": r"\[-[0-9]+\]",
    "local - (4.4)": r"\blocal -\s",
    "variables of bash 5": r"\$\{?(EPOCH(REALTIME|SECONDS)|SRANDOM)(?!-)",
    "${ command; } (5.3)": r"\$\{[ |]",
}


def rendered(case: str) -> str:
    return render_node(Layout("/nonexistent"), *CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    made = rendered(case)
    check_golden(case, made, BASE, rendered(BASE))
    subprocess.run(["bash", "-n"], input=made, text=True, check=True)
    assert "s3cret" not in made


@pytest.mark.parametrize("name", [*CASES, "wrapper.sh.j2"])
def test_nothing_is_newer_than_bash_4_2(name: str) -> None:
    import dispatcher

    packaged = Path(dispatcher.__file__).parent / "templates"
    text = rendered(name) if name in CASES else (packaged / name).read_text()
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "export WORD_")))
    assert [name for name, pattern in NEWER.items() if re.search(pattern, code)] == []


def test_what_is_newer_is_recognized() -> None:
    for number, code in enumerate(
        [
            '"${x@Q}"',
            "wait -n",
            "local -n x=y",
            "mapfile -t -d ''",
            "unset a[-1]",
            "local - x",
            "$EPOCHSECONDS",
            "${ id; }",
        ]
    ):
        assert [n for n, pattern in enumerate(NEWER.values()) if re.search(pattern, code)] == [number]
