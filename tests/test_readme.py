"""The pages at the top: moving in, as a lab follows it, and what they say of the code is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
# The lab's own files, as they are.
ENTRY = {
    "job_id": "fft_spanish_cfgB_s42_main", "method": "fft", "lang": "spanish", "fleurs_code": "es_419",
    "whisper_lang": "spanish", "config_id": "B", "seed": 42, "asr_ratio": 0.5, "max_text_lines": 500000,
    "text_mtl_path": "/path/to/goldfish/spa_latn.txt",
    "output_dir": "/checkpoints/matrix_runs/fft_spanish_cfgB_s42_main", "run_kind": "main",
}  # fmt: skip
LANGUAGES = ("spanish", "hindi", "greek", "czech")
STATUS = {
    "fft_spanish_cfgB_s42_main": {
        "state": "done", "pod": "shivam-0_tokfix", "pid": 3328333, "gpu": 2,
        "started_at": "2026-06-17T22:48:00Z", "finished_at": "2026-06-17T26:12:00Z", "exit_code": 0,
    },
    "fft_hindi_cfgB_s42_main": {
        "state": "failed", "pod": "shivam-0_tokfix", "pid": 3328334, "gpu": 3, "started_at": "2026-06-17T22:48:00Z",
    },
    "fft_greek_cfgB_s42_main": {"state": "queued"},
}  # fmt: skip
TEMPLATE = """
from pathlib import Path

PARAMS = {"lang": ..., "seed": ..., "asr_ratio": 0.5, "output_dir": ...}
Path("ran").mkdir(exist_ok=True)
(Path("ran") / PARAMS["lang"]).touch(exist_ok=False)
"""


def lab_at(root: Path) -> dict[str, Any]:
    """A lab that has run a matrix with its own script; its status file."""
    entries = [
        {key: value.replace("spanish", lang) if isinstance(value, str) else value for key, value in ENTRY.items()}
        for lang in LANGUAGES
    ]
    (root / "matrix").mkdir(parents=True)
    (root / "templates").mkdir()
    (root / "matrix" / "matrix.json").write_text(json.dumps(entries, indent=2))
    (root / "matrix" / "matrix_status.json").write_text(json.dumps(STATUS, indent=2))
    (root / "templates" / "train_fft.py").write_text(TEMPLATE)
    return STATUS


def lines_of_the_page() -> str:
    page = README.read_text().split("## Move in from an own script\n")[1].split("\n## ")[0]
    found = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert len(found) == 1
    assert len(found[0].splitlines()) == 5
    return str(found[0])


def test_a_lab_moves_in_by_the_lines_of_the_readme(tmp_path: Path) -> None:
    root = tmp_path / "lab"
    lab_at(root)
    known = {key: value for key, value in os.environ.items() if not key.startswith(("DISPATCHER_", "CUDA_"))}
    environment = {
        **known,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        # Else the last line would go on for ever.
        "DISPATCHER_UNTIL_EMPTY": "1",
    }
    done = subprocess.run(
        ["bash", "-e", "-c", lines_of_the_page()],
        cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # What is done or has failed runs no second time, what was queued and what is new does.
    assert sorted(path.name for path in (root / "ran").iterdir()) == ["czech", "greek"]
    assert json.loads((root / "matrix" / "matrix_status.json").read_text()) == STATUS
    status = json.loads((root / "run_state" / "matrix_status.json").read_text())
    assert {job: line["state"] for job, line in status.items()} == {
        "fft_spanish_cfgB_s42_main": "done",
        "fft_hindi_cfgB_s42_main": "failed",
        "fft_greek_cfgB_s42_main": "done",
        "fft_czech_cfgB_s42_main": "done",
    }
    assert status["fft_spanish_cfgB_s42_main"] == {**STATUS["fft_spanish_cfgB_s42_main"], "rev": 1}


OUTLET_PAGES = sorted((ROOT / "docs" / "outlets").glob("*.md"))


def test_the_overview_of_outlets_links_to_every_page() -> None:
    overview = (ROOT / "docs" / "outlets" / "README.md").read_text()
    assert [page.name for page in OUTLET_PAGES if page.name != "README.md" and f"]({page.name})" not in overview] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_names_of_a_page_are_in_the_files_that_it_names(page: str) -> None:
    """`cli/main.py: _COMMANDS` and `cli/main.py`, in the package or in the checkout."""
    named = re.findall(r"`([\w/.]+\.py)(?:: (\w+))?`", (ROOT / page).read_text())
    assert len(named) > 3
    for path, name in named:
        files = [folder / path for folder in (ROOT, ROOT / "dispatcher") if (folder / path).is_file()]
        assert files, path
        assert not name or re.search(rf"^(class |def )?{name}\b", files[0].read_text(), re.MULTILINE), f"{path}: {name}"
