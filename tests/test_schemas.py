"""The JSON schemas for editors, checked by a validator that is not ours: they accept what the readers accept.

What they refuse beyond syntax (two keys that exclude each other) is the readers' alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from commands import run
from pages import blocks
from test_documented_keys import ENTRY, METHOD, SETTINGS

from dispatcher.base.schema.json_schema import of_struct
from dispatcher.base.yaml_text import load
from dispatcher.config import load_config
from dispatcher.hosts.types import Cluster
from dispatcher.schemas import SCHEMAS, schema
from dispatcher.workspace import Layout

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMPLETE = {**SETTINGS, "methods": {"fft": METHOD}}


def faults(kind: str, document: object) -> list[str]:
    """The places and messages of what the schema refuses in a document."""
    found = jsonschema.Draft7Validator(schema(kind)).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_each_schema_is_one_of_draft_7(kind: str) -> None:
    jsonschema.Draft7Validator.check_schema(schema(kind))


@pytest.mark.parametrize("document", [COMPLETE, {}, dict.fromkeys(COMPLETE), {"methods": {"a": None}, "hosts": {}}])
def test_a_configuration_that_can_be_read_is_accepted(document: Mapping[str, Any]) -> None:
    assert faults("config", document) == []


def test_files_of_the_examples_and_of_a_lab_are_accepted() -> None:
    files = [
        (ROOT / "dispatcher.yaml", "config"),
        (ROOT / "examples" / "names" / "dispatcher.yaml", "config"),
        (ROOT / "tests" / "hosts" / "lab.yaml", "config"),
        *((path, "sweep") for path in (ROOT / "examples").rglob("matrix/*.yaml")),
    ]
    assert len(files) > 4
    for path, kind in files:
        document = load(path.read_text()) or {}
        # In a file of its own: what an older tool reads.
        document.pop("proxy", None), document.pop("mount", None)
        assert faults(kind, document) == [], path


def test_what_the_pages_show_is_accepted() -> None:
    shown = {"config": 0, "sweep": 0, "manifest": 0}
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8").partition("## Faults\n")[0]):
            kind = kind_of(block.kind, block.text)
            if kind and not block.not_run:
                assert faults(kind, load(block.text) or {}) == [], f"{page.name}: {block.text}"
                shown[kind] += 1
    assert shown["config"] > 20 and shown["sweep"] > 5 and shown["manifest"] > 3


def kind_of(language: str, text: str) -> str:
    """The kind of file that a block of a page is; empty for another."""
    try:
        document = load(text) if language in ("yaml", "json") else None
    except ValueError:
        # Several documents.
        return ""
    if isinstance(document, list) and all(isinstance(one, dict) and "job_id" in one for one in document):
        return "manifest"
    if not isinstance(document, dict):
        return ""
    if "sweeps" in document:
        return "sweep"
    return "config" if document.keys() & SETTINGS.keys() and document.keys() <= SETTINGS.keys() else ""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("poll_intervall: 3", "poll_intervall"),
        ("poll_interval: soon", "$.poll_interval"),
        ("poll_interval: 0", "$.poll_interval"),
        ("poll_interval: '90'", "$.poll_interval"),
        ("lock: lockd", "$.lock"),
        ("code: shipp", "$.code"),
        ("provenance: maybe", "$.provenance"),
        ("max_requeues: -1", "$.max_requeues"),
        ("gpu_idle: {aftr: 3}", "$.gpu_idle"),
        ("limits: [{per: lang}]", "$.limits"),
        ("methods: {fft: {gpus: two}}", "$.methods.fft"),
        ("methods: {fft: {time_limt: 8h}}", "$.methods.fft"),
        ("methods: {fft: {retry_on: [oom]}}", "$.methods.fft"),
        ("methods: {fft: {gpu_memory: 20g}}", "$.methods.fft"),
        ("methods: {fft: {container: {runtime: docker, image: a}}}", "$.methods.fft"),
        ("methods: {fft: {resources: {nodes: 0}}}", "$.methods.fft"),
        ("methods: {fft: {pause_after: 1}}", "$.methods.fft"),
        ("hosts: {a: {ssh: a, partitions: [x]}}", "$.hosts.a"),
        ("hosts: {a: {type: slrum}}", "$.hosts.a"),
        ("hosts: {a: {type: plain}}", "$.hosts.a"),
        ("hosts: {a: {type: slurm, partitions: [{default: true}]}}", "$.hosts.a"),
        ("hosts: {a: {type: tpu, zone: z, accelerator_type: v4}}", "$.hosts.a"),
        ("clusters: {a: {root: data}}", "$.clusters.a"),
        ("notify: {targets: {}}", "$.notify"),
        ("notify: {targets: {a: {comand: [cat]}}}", "$.notify"),
        ("notify: {targets: {a: {smtp: {host: h, from: a@b, to: c@d, port: 0}}}}", "$.notify"),
    ],
)
def test_a_configuration_that_the_reader_refuses_is_refused(text: str, place: str, tmp_path: Path) -> None:
    found = faults("config", load(text))
    assert found and any(place in fault for fault in found), found
    (tmp_path / "dispatcher.yaml").write_text(text)
    with pytest.raises(Exception, match="problem"):
        load_config(Layout(tmp_path))


def test_entries() -> None:
    entry = {"job_id": "a", "method": "m", "lr": 1e-4, "layers": [1, 2], **ENTRY}
    assert faults("entry", entry) == [] == faults("manifest", [entry])
    for key, value in (("gpus", -1), ("job_id", "a/b"), ("needs", "a"), ("time_limit", "90"), ("env", {"A B": "x"})):
        (fault,) = faults("entry", {**entry, key: value})
        assert key in fault
    assert faults("entry", {"job_id": "a"}) == ["$: 'method' is a required property"]


@pytest.mark.parametrize(
    "text",
    [
        "sweep: []",
        "sweeps: []",
        "sweeps: [{grid: {a: 1}}]",
        "sweeps: [{gird: {a: [1]}}]",
        "sweeps: [{zip: [{a: []}]}]",
        "sweeps: [{random: {seed: 1, draw: {lr: {uniform: [0, 1]}}}}]",
        "sweeps: [{random: {seed: 1, count: 3, draw: {lr: {unifrm: [0, 1]}}}}]",
        "defaults: {gpus: many}",
        "derive: {a: 3}",
        "sweeps: [{exclude: [{}]}]",
    ],
)
def test_a_sweep_file_with_a_fault_is_refused(text: str) -> None:
    assert faults("sweep", load(text))


STUDY = """
name: s
defaults: {command: "true {lr}", lang: greek}
derive: {output_dir: "/out/{job_id}"}
space: {lr: {log_uniform: [1e-5, 1e-2]}, n: {integer: [1, 9], step: 2}, m: {uniform: [0, 1], when: {n: {above: 3}}}}
objective: {value: loss, goal: min}
trials: 50
sampler: {tpe: {seed: 1}}
halving: {metric: loss, min_step: 10, max_step: 90}
"""


def test_studies() -> None:
    assert faults("study", load(STUDY)) == []
    for old, new in (
        ("name: s", "name: s\nnmae: t"),
        ("goal: min", "goal: least"),
        ("trials: 50", "trials: 0"),
        ("{tpe: {seed: 1}}", "cmaes"),
        ("{seed: 1}", "{seeds: 1}"),
        ("log_uniform", "log_unifrom"),
        ("min_step: 10, ", ""),
    ):
        assert old in STUDY and faults("study", load(STUDY.replace(old, new))), new


def test_a_description_has_no_link() -> None:
    texts = re.findall(r'"description": "(.*?)[^\\]"', json.dumps([schema(kind) for kind in SCHEMAS]))
    assert len(texts) > 200 and not [text for text in texts if "](" in text]
    assert (
        of_struct(Cluster)["properties"]["work"]["description"]
        == "where code is extracted, and files of attempts are kept"
    )


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "dispatcher.yaml").touch()
    done = run([sys.executable, "-m", "dispatcher", "schema", "config"], cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(done.stdout) == schema("config")
    done = run([sys.executable, "-m", "dispatcher", "schema", "confg"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "did you mean 'config'?" in done.stderr


JOBS = """
from dataclasses import dataclass

from dispatcher.runtime.configuration import field
from dispatcher.runtime.jobs.basic import BasicJob
from dispatcher.runtime.registry import job


@dataclass(frozen=True)
class Counting:
    text: str = field("count/text")
    times: int | None = field("count/times", default=1)


@job("count/letters")
class CountLetters(BasicJob[Counting]):
    @classmethod
    def config(cls):
        return Counting
"""


def test_the_schema_of_a_job_file(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    (tmp_path / "dispatcher.yaml").touch()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "count.py").write_text(JOBS)
    command = [sys.executable, "-m", "dispatcher", "schema", "job", "count/letters"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    validator = jsonschema.Draft7Validator(json.loads(done.stdout))
    validator.check_schema(validator.schema)
    job = {"job": "count/letters", "request": {"chip": "h100", "min_chips": 8}}
    for right in ({"count": {"text": "a", "times": 2}}, {"count": {"text": "..."}}, {"count": None}, {}):
        assert validator.is_valid({**job, **right}), right
    wrong = [{"count": {"text": 3}}, {"cuont": {}}, {"count": {"tims": 3}}, {"request": {"chips": 3}}, {"job": "a/b"}]
    for one in wrong:
        assert not validator.is_valid({**job, **one}), one
