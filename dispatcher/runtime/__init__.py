"""Jobs in JAX: the code that runs inside a job, and the only part of the package that imports JAX. It imports
`contract`, `errors`, `base` and `checkpoints`, and nothing else of the package.

    from dispatcher.runtime import BasicJob, CheckpointedJob, RestoreableJob, field, job
    from dispatcher.runtime import EvaluationJob, InferenceJob, Trainer
    from dispatcher.runtime import Arrays, Mean, Source, State, Streamed, Value

A job is a class with a key (`registry`). It is made from a configuration and an ExecutionSpec, and then called, on all
of its processes alike:

    BasicJob            a typed configuration, one run, a row of results
      ApiRollouts       asks a model behind HTTP, each request once
      CheckpointedJob   saves and loads pytrees by name
        RestoreableJob  restored from a checkpoint, its own or another job's
          Trainer       a training of any model, from any data (docs/trainer.md)
          InferenceJob  uses a trained model, from a checkpoint or of a running trainer
          EvaluationJob runs a trainer's evaluations on a checkpoint

Jobs are made in three ways (`launching`): by an attempt of a matrix entry with `job`, by `dispatcher job run` from a
file (`command_line`, `job_file`; `job_schema` is for editors), and in a notebook (`quick`). With `restore` the class,
the configuration and the state come from a checkpoint, and the given configuration is merged over the checkpoint's.

Configuration. One nested document, from which dataclasses are built: `places` maps fields to keys, `base.schema`
converts values, `configuration` merges and checks documents, `config_tree` gives access by attribute, `base.yaml_text`
reads and writes the files. The dataclasses of a job's model and optimizer are added to its own.

Where the workspace is not seen, an attempt is started by a rendered `bootstrap` (dispatcher/templates/bootstrap.py),
which brings its entry along and keeps a `run_record`.

Environment. `execution` has the devices, their mesh of data and tensor shards, and the directories. Below `runs/` of
the workspace are `data/`, `checkpoints/PROJECT/GROUP/NAME/` and `results/PROJECT/GROUP/NAME/`. `distributed`
initializes jobs of several processes: all of them run the same code, process 0 writes. Outside a dispatcher only one
run of a name at a time is allowed (`run_lock`); between attempts of a dispatcher the fence of the checkpoints decides.

Checkpoints. `checkpoint` describes its protocol: committed atomically, written in the background, fenced against
superseded attempts. A job adds its key, configuration, random state and position in the data.

Training. `training` has the trainer; its page explains it. `model_state` carries what a step changes of the model
beside its weights, or raises an error; `parameters` names a model's arrays, `roles` what they are to an optimizer;
`optimizers` and `schedules` are chosen by the configuration; `device_types` checks that numbers survive the way to the
devices. On a preemption (`preemption`) a training saves and exits with 75, and the next attempt resumes from the last
checkpoint, bit for bit as if there had been no interruption. `metrics` promises the same for metrics.jsonl; `wandb_log`
forwards metrics. `language` is one user of the trainer: a transformer, its data and its loss.

Batch size. With `per_device_batch_size: -1`, `jobs.batch_size_finder` uses the largest that fits into memory:
`batch_size` searches by bisection, with one process per probe (`probe`), and caches the result for jobs for which all
is equal that it depends on (`loaded_code` is a part of that). The batch of an update stays the same; only the number of
accumulation steps changes.

Inference. `rollout` generates tokens for rows that are padded on the left, with a model that keeps a cache (`Decoder`)
or with any other; `encoding` maps text to tokens and back. `adapters` adds low-rank adapters to a model and merges
them; `MergeAdapters` saves the merged model.

Models behind HTTP. `http_api` sends requests, tries again, and saves each response as it comes; its page says what is
promised.

The package's own jobs are `gpt/train/pretrain`, `gpt/sample` and `api/rollout`; `examples/names/` is a project with
jobs of its own. How to write one is in tutorials/, whose code the tests run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.base.lazy import lazy_names

if TYPE_CHECKING:
    from dispatcher.runtime.configuration import field
    from dispatcher.runtime.jobs.api_rollouts import ApiRollouts
    from dispatcher.runtime.jobs.basic import BasicJob
    from dispatcher.runtime.jobs.checkpointed import CheckpointedJob
    from dispatcher.runtime.jobs.evaluation import EvaluationJob
    from dispatcher.runtime.jobs.inference import InferenceJob
    from dispatcher.runtime.jobs.restoreable import RestoreableJob
    from dispatcher.runtime.registry import job
    from dispatcher.runtime.training.data import Arrays, Source, Streamed
    from dispatcher.runtime.training.state import State
    from dispatcher.runtime.training.trainer import Trainer
    from dispatcher.runtime.training.values import Mean, Value

__all__ = [
    "ApiRollouts",
    "Arrays",
    "BasicJob",
    "CheckpointedJob",
    "EvaluationJob",
    "InferenceJob",
    "Mean",
    "RestoreableJob",
    "Source",
    "State",
    "Streamed",
    "Trainer",
    "Value",
    "field",
    "job",
]

# Imported when used: a job that trains nothing does not pay for the trainer.
_PUBLIC = {
    "ApiRollouts": "dispatcher.runtime.jobs.api_rollouts",
    "Arrays": "dispatcher.runtime.training.data",
    "BasicJob": "dispatcher.runtime.jobs.basic",
    "CheckpointedJob": "dispatcher.runtime.jobs.checkpointed",
    "EvaluationJob": "dispatcher.runtime.jobs.evaluation",
    "InferenceJob": "dispatcher.runtime.jobs.inference",
    "Mean": "dispatcher.runtime.training.values",
    "RestoreableJob": "dispatcher.runtime.jobs.restoreable",
    "Source": "dispatcher.runtime.training.data",
    "State": "dispatcher.runtime.training.state",
    "Streamed": "dispatcher.runtime.training.data",
    "Trainer": "dispatcher.runtime.training.trainer",
    "Value": "dispatcher.runtime.training.values",
    "field": "dispatcher.runtime.configuration",
    "job": "dispatcher.runtime.registry",
}

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
