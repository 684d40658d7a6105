"""What runs inside a job: the only code of the package that imports JAX. Of the rest it knows `contract`, `errors` and
`values`.

    from dispatcher.runtime import BaseTrainer, BasicJob, CheckpointedJob, InferenceJob, RestoreableJob, field, job

A job is a class under a key (`registry`) that is made of a configuration and of a specification of its run, and then
called, on all of its processes alike:

    BasicJob            typed configuration; one run; a row of results
      CheckpointedJob   pytrees saved and loaded by name
        RestoreableJob  made again from a checkpoint, its own or another job's
          BaseTrainer   the training loop
          InferenceJob  a trained model at work, from a checkpoint or from a trainer while it trains

Whoever makes it does the same (`launching`): an attempt of a matrix entry that says `job`, `dispatcher job run` with a
file (`command_line`, `job_file`), a notebook (`quick`). With `restore` the class, the configuration and the state come
from a checkpoint, and what was said at the start is merged over that configuration.

Configuration. Dataclasses name the place of each field in one nested document (`places`); `value_types` says what a
value may be, `configuration` merges, checks and reads documents, `config_tree` is the view of one with attributes,
`base.yaml_text` reads and writes the files. A job asks for its dataclasses, and those of its model and its optimizer
come on their own.

Where it runs. `execution` has the devices, their mesh of data and tensor shards, and the directories: below `runs/` of
the workspace are `data/`, `checkpoints/PROJECT/GROUP/NAME/` and `results/PROJECT/GROUP/NAME/`. The processes of one
job find each other there (`distributed`); from then on all of them run the same code, and the first one writes. Of
runs that somebody starts by hand one of a name goes on at a time (`run_lock`); of attempts the fence says which counts.

Checkpoints. `checkpoint` is a package of its own, told on its own page: whole or not there, written in the background,
fenced against attempts that have been replaced. Jobs add what made them: key, configuration, random state, position.

Training. `stream` says which rows come next, as two numbers that a checkpoint keeps; `step` compiles one update and
one look at held-out rows for a mesh (`sharding`) and a model taken apart into arrays by name (`parameters`); what a
step changes of the model beside its weights is carried on or refused (`model_state`);
`optimizers` and `schedules` are what the configuration chooses from. `jobs.trainer` is the loop around them: it saves,
evaluates, logs, and when it is told to leave (`preemption`) saves and exits with 75. Whatever ended an attempt, the
next one goes on from the last checkpoint, bit for bit as if nothing had happened. `metrics` keeps that promise for
metrics.jsonl; `wandb_log` passes them on.

Batch size. `batch_size` finds the largest that fits by halving, with one process for each try (`probe`), and remembers
it; `jobs.fitting` asks when a configuration says -1. The rows of one update stay as many as were said.

Inference. `transformer` is the model that comes along, with `attention` and its cache; `rollout` adds token after token
to rows padded on the left. `adapters` puts low-rank matrices beside the weights.

The package's own jobs are `gpt/train/pretrain` and `gpt/sample`; `examples/names/` is a project with jobs of its own.
How to write one is in tutorials/, which the tests run as they are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.base.lazy import lazy_names

if TYPE_CHECKING:
    from dispatcher.runtime.configuration import field
    from dispatcher.runtime.jobs.basic import BasicJob
    from dispatcher.runtime.jobs.checkpointed import CheckpointedJob
    from dispatcher.runtime.jobs.inference import InferenceJob
    from dispatcher.runtime.jobs.restoreable import RestoreableJob
    from dispatcher.runtime.jobs.trainer import BaseTrainer
    from dispatcher.runtime.registry import job

__all__ = ["BaseTrainer", "BasicJob", "CheckpointedJob", "InferenceJob", "RestoreableJob", "field", "job"]

# Imported when used: a job that trains nothing does not pay for the trainer.
_PUBLIC = {
    "BaseTrainer": "dispatcher.runtime.jobs.trainer",
    "BasicJob": "dispatcher.runtime.jobs.basic",
    "CheckpointedJob": "dispatcher.runtime.jobs.checkpointed",
    "InferenceJob": "dispatcher.runtime.jobs.inference",
    "RestoreableJob": "dispatcher.runtime.jobs.restoreable",
    "field": "dispatcher.runtime.configuration",
    "job": "dispatcher.runtime.registry",
}

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
