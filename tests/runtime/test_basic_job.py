"""BasicJob: what a call does, on one process and on two."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ports import free_port

from dispatcher.errors import ConfigError, UsageError
from dispatcher.runtime.configuration import configuration, configure, current_config, field
from dispatcher.runtime.jobs.basic import BasicJob


@dataclass(frozen=True)
class Counting:
    text: str = field("count/text")
    times: int = field("count/times", default=1)


@dataclass(frozen=True)
class Extra:
    letter: str = field("extra/letter", default="a")


class Count(BasicJob[Counting]):
    """Counts letters, and says what was called."""

    @classmethod
    def config(cls) -> list[type[Any]]:
        return [Counting, Extra]

    @property
    def done(self) -> bool:
        return self.spec.result_path("done").exists()

    def run(self) -> dict[str, float | str]:
        self.calls = ["run"]
        with self.spec.result("done"):
            pass
        return {"letters": len(self.args.text) * self.args.times, "letter": configure(Extra).letter}

    def finish(self) -> None:
        self.calls.append("finish")


def made(root: Path, **said: Any) -> Count:
    with configuration(Count.checked_config({"count": said})):
        return Count.local(root, "count")


def test_a_job_runs_once(tmp_path: Path) -> None:
    first = made(tmp_path, text="hello", times=2)
    assert first.args == Counting(text="hello", times=2) and first.main_process()
    assert first() == {"letters": 10, "letter": "a"}
    assert first.calls == ["run", "finish"]
    second = made(tmp_path, text="other")
    assert second() == {"letters": 10, "letter": "a"}
    assert not hasattr(second, "calls")


def test_a_call_has_the_configuration_that_the_job_was_made_in(tmp_path: Path) -> None:
    job = made(tmp_path, text="hello")
    assert current_config() is None
    with configuration({"extra": {"letter": "z"}}):
        assert job() == {"letters": 5, "letter": "a"}


def test_a_row_is_what_json_can_say(tmp_path: Path) -> None:
    class Row(Count):
        def run(self) -> dict[str, Any]:
            return {"array": np.float32(0.5), "count": 3, "loss": math.nan, "name": "x"}

    with configuration(Row.checked_config({"count": {"text": "a"}})):
        job = Row.local(tmp_path, "row")
    job.calls = []
    assert job() == {"array": 0.5, "count": 3, "loss": None, "name": "x"}
    assert json.loads(job.spec.result_path("result.json").read_text())["loss"] is None


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"loss": np.ones(3)}, r"the result has loss: array\(\[1\., 1\., 1\.\]\): expected a number or text in a row"),
        ({"loss": None}, "the result has loss: None"),
        (0.5, "the result is float: expected a row"),
    ],
)
def test_what_makes_no_row_is_named(tmp_path: Path, result: Any, message: str) -> None:
    class Other(Count):
        def run(self) -> Any:
            return result

    with configuration(Other.checked_config({"count": {"text": "a"}})):
        job = Other.local(tmp_path)
    with pytest.raises(UsageError, match=message):
        job()


def test_a_job_that_lacks_a_value_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"count\.text: required"):
        made(tmp_path)
    with pytest.raises(ConfigError, match="no configuration"):
        Count.local(tmp_path)


def test_a_job_without_run_or_config_is_no_job(tmp_path: Path) -> None:
    class Half(BasicJob[Counting]):
        @classmethod
        def config(cls) -> type[Counting]:
            return Counting

    with configuration({"count": {"text": "a"}}), pytest.raises(TypeError, match="abstract method"):
        Half.local(tmp_path)  # type: ignore[abstract]


TWO = """
import json, sys
import jax
address, number, root = sys.argv[1], int(sys.argv[2]), sys.argv[3]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, num_processes=2, process_id=number)
from dataclasses import dataclass
from dispatcher.runtime.configuration import configuration, field
from dispatcher.runtime.jobs.basic import BasicJob

@dataclass
class Nothing:
    x: int = field("x", default=1)

class Both(BasicJob[Nothing]):
    @classmethod
    def config(cls):
        return Nothing

    @property
    def done(self):
        return number == 0 and self.spec.result_path("result.json").exists()

    def run(self):
        with self.spec.result("own.txt", main_process_only=False) as file:
            file.write(str(number))
        return {"process": number}

for _ in range(2):
    with configuration({}):
        job = Both.local(root, "both")
    row = job()
print(json.dumps([number, job.main_process(), job.spec.distributed, job.spec.hardware.processes, dict(row)]))
"""


def test_two_processes_run_a_job_together(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    started = [
        subprocess.Popen([sys.executable, "-c", TWO, address, str(number), str(tmp_path)], stdout=subprocess.PIPE)
        for number in range(2)
    ]
    try:
        said = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in started]
    finally:
        for process in started:
            process.kill()
    assert said == [[0, True, True, 2, {"process": 0}], [1, False, True, 2, {"process": 0}]]
    results = tmp_path / "results" / "default" / "default" / "both"
    assert {path.name: path.read_text() for path in results.iterdir() if path.name != ".lock"} == {
        "own.txt": "0",
        "own.1.txt": "1",
        "result.json": '{"process": 0}',
    }
