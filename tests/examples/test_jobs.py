from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jobs import _text as text
from jobs._vocabulary import BOUNDARY, Vocabulary
from jobs.names import FineTune, Lora, Pretrain
from tiny_runs import environment

from dispatcher import contract
from dispatcher.errors import UsageError
from dispatcher.runtime.execution import local
from dispatcher.runtime.launching import make_job
from dispatcher.runtime.parameters import evaluating

pytestmark = pytest.mark.demo

SMALL = {
    "model": {
        "d_model": 16,
        "num_heads": 2,
        "num_kv_heads": 1,
        "num_layers": 1,
        "d_ff": 24,
        "max_seq_len": 64,
        "dropout": 0.1,
    },
    "training": {"steps": 8, "batch_size": 2, "log_every": 1},
}
BASE = "names/pretrain/base/best"
EXAMPLE = Path(__file__).parents[2] / "examples" / "names"
# In a process of its own: it is preempted in its third step.
CUT = """
import json, os, signal, sys
from pathlib import Path
from dispatcher.runtime.execution import local
from dispatcher.runtime.launching import make_job
from dispatcher.runtime.registry import import_jobs

import_jobs(Path(sys.argv[4]))
from jobs.names import FineTune

class Cut(FineTune):
    def run_block(self, *words):
        if self.steps_done == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().run_block(*words)

make_job(Cut, local(sys.argv[1], "cut", "names", "finetune"), json.loads(sys.argv[2]), restore=sys.argv[3])()
"""


def made(cls: type[Any], root: Any, name: str, **config: Any) -> Any:
    said = {**{key: value for key, value in SMALL.items() if cls is Pretrain or key == "training"}, **config}
    restore = None if cls is Pretrain else BASE
    return make_job(cls, local(root, name, "names", cls.__name__.lower()), said, restore=restore)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A workspace with a base after a few steps: enough to start from, not to be good."""
    directory = tmp_path_factory.mktemp("names")
    made(Pretrain, directory, "base")()
    return directory


@pytest.fixture(scope="module")
def greek(root):
    """The row of a fine-tune of all weights."""
    return made(FineTune, root, "greek", names={"lang": "greek"})()


def bits_of(job: Any, name: str) -> tuple[float, int]:
    """What one name alone costs, and in how many predictions."""
    encoded = Vocabulary(job.args.alphabet).encode(name)
    model = evaluating(job.setup.layout.model.merge(job.live_state.model))
    # Operation by operation, every length of a name would be compiled a hundred times.
    logs = nnx.jit(lambda model, tokens: jax.nn.log_softmax(model(tokens)))(model, np.array([[BOUNDARY, *encoded]]))[0]
    targets = [*encoded, BOUNDARY]
    return -float(sum(logs[place, target] for place, target in enumerate(targets))) / math.log(2), len(targets)


def test_bits_per_character_are_those_of_every_name_alone(root, monkeypatch):
    job = made(FineTune, root, "few", names={"lang": "greek"})
    few = text.Split(train=("Ελλάδα",), test=text.split("greek").test[:3])
    monkeypatch.setattr(job, "_names", lambda: few)
    job.begin()
    bits, characters = (sum(column) for column in zip(*(bits_of(job, name) for name in few.test), strict=True))
    assert job.evaluated()["test/loss"] / math.log(2) == pytest.approx(bits / characters, rel=1e-5)


def test_lora_trains_its_adapters_and_nothing_else_and_reports_a_row_that_fits_together(root, greek):
    job = made(Lora, root, "greek", names={"lang": "greek"}, adapters={"rank": 2})
    job.begin()
    before = {name: np.asarray(array) for name, array in job.live_state.model.items()}
    row = job()
    after = job.live_state.model
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {name for name in before if name.rsplit("/", 1)[-1] in ("lora_a", "lora_b")}
    for each in (greek, row):
        assert each["gain"] == pytest.approx(each["base_bpc"] - each["test_bpc"], abs=2e-4)
    # Two programs, rounded differently, and then both to four digits.
    assert greek["base_bpc"] == pytest.approx(row["base_bpc"], abs=2e-4)
    assert row["n_trained"] < greek["n_trained"]


def test_a_fine_tune_that_was_preempted_still_knows_where_it_began(root, greek, jax_cache, monkeypatch):
    config = {"names": {"lang": "greek"}, "training": SMALL["training"]}
    cut = [sys.executable, "-c", CUT, str(root), json.dumps(config), BASE, str(EXAMPLE)]
    assert subprocess.run(cut, env=environment(jax_cache), check=False).returncode == contract.EXIT_PREEMPTED
    again = made(FineTune, root, "cut", names={"lang": "greek"})
    monkeypatch.setattr(again, "load_model", lambda: pytest.fail("the base is not read when there is a checkpoint"))
    assert again() == greek


def test_the_alphabet_is_the_checkpoints(root):
    job = made(FineTune, root, "greek-2", names={"lang": "greek"})
    assert job.args.alphabet == made(Pretrain, root, "base").args.alphabet
    small = Vocabulary.of(text.split("greek").train)
    with pytest.raises(ValueError, match=r"the vocabulary of \d+ characters lacks"):
        made(Pretrain, root, "small", names={"alphabet": small.alphabet}, model={"vocab_size": small.size})()


def test_a_language_that_is_not_there_is_named(root):
    with pytest.raises(UsageError, match="did you mean 'turkish'"):
        made(FineTune, root, "nowhere", names={"lang": "turkisch"})()
