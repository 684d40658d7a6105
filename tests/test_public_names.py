"""The public names of the package and their signatures: what users may import.

After an intended change, copy the line that the failing test prints into the list here and describe the change in
CHANGELOG.md.
"""

# ruff: noqa: E501 (one line per name, so that a failing test prints what to copy)

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

REPOSITORY = Path(__file__).parent.parent

# One line per name: a value with its value, a function with its signature, a class with each of its public members.
PUBLIC = {
    "dispatcher": """
class DispatcherError(Exception)
class Workspace
Workspace.__init__(self, root: str | os.PathLike[str] | None = None, *, by: str | None = None, warn: Callable[[str], object] | None = None) -> None
Workspace.add(self, entries: Iterable[Mapping[str, Any]], manifest: str | os.PathLike[str] | None = None) -> Manifest
Workspace.apply(self, plan: Plan, *, force: bool = False) -> Changes
Workspace.apply_update(self, plan: Plan, *, priority: int | None = None, time_limit: str | None = None) -> Changes
Workspace.attempts(self, job: str) -> list[dict[str, Any]]
Workspace.cancel(self, *names: str, states: Iterable[str] = (), where: Where = (), user: Users = (), force: bool = False) -> Changes
Workspace.clean(self, names: Sequence[str] = (), *, what: Collection[str] = ('attempts', 'blobs'), where: Where = (), keep: int | None = None, older_than_s: float = 0.0, periodic: bool = False, remove: bool = False, on_job: Callable[[int], None] | None = None) -> RemovalPlan
Workspace.clear_refused(self, jobs: Iterable[str] = ()) -> list[str]
Workspace.clear_notices(self) -> list[int]
Workspace.config
Workspace.delete(self, *names: str) -> list[str]
Workspace.drain(self, pod: str) -> None
Workspace.entries(self) -> dict[str, Entry]
Workspace.history(self, job: str | None = None) -> Iterator[Line]
Workspace.hold(self, *names: str, states: Iterable[str] = (), where: Where = (), user: Users = ()) -> Changes
Workspace.layout
Workspace.mark(self, state: State | str, *names: str, states: Iterable[str] = (), where: Where = (), user: Users = ()) -> Changes
Workspace.metrics(self, jobs: str | Iterable[str] = (), *, names: str | Iterable[str] = (), states: Iterable[str] = (), where: Where = (), user: Users = ()) -> Metrics
Workspace.notices(self) -> list[dict[str, Any]]
Workspace.pause(self, scope: str, why: str = '') -> None
Workspace.plan(self, state: State, names: Sequence[str], *, states: Iterable[str] = (), where: Where = (), user: Users = (), changed: bool = False, no_result: bool = False, downstream: bool = False) -> Plan
Workspace.plan_update(self, names: Sequence[str], *, states: Iterable[str] = (), where: Where = (), user: Users = ()) -> Plan
Workspace.pods(self) -> list[PodStatus]
Workspace.queue(self) -> list[tuple[str, str]]
Workspace.readable_config
Workspace.records(self) -> dict[str, Record]
Workspace.requeue(self, *names: str, states: Iterable[str] = (), where: Where = (), user: Users = (), changed: bool = False, no_result: bool = False, downstream: bool = False) -> Changes
Workspace.results(self, *, states: Iterable[str] = (), where: Where = (), user: Users = (), every_job: bool = False) -> Results
Workspace.snapshot(self) -> Snapshot
Workspace.status(self, *, states: Iterable[str] = (), where: Where = (), user: Users = ()) -> Overview
Workspace.store
Workspace.submit(self, command: str | Sequence[str], *, name: str | None = None, params: Mapping[str, Any] | None = None, rows: Sequence[Mapping[str, Any]] | None = None, **keys: Any) -> list[str]
Workspace.tell(self) -> list[dict[str, Any]]
Workspace.test_notice(self, *targets: str) -> dict[str, Outcome]
Workspace.transaction(self) -> Iterator[Transaction]
Workspace.update(self, *names: str, priority: int | None = None, time_limit: str | None = None, states: Iterable[str] = (), where: Where = (), user: Users = ()) -> Changes
Workspace.usage(self, *, by: Sequence[str] = (), since_s: float, until_s: float | None = None, where: Where = (), user: Users = (), utc: bool = False) -> Usage
Workspace.wait(self, jobs: str | Iterable[str], *, timeout_s: float | None = None) -> dict[str, Record | None]
Workspace.wait_until_running(self, job: str, *, timeout_s: float | None = None) -> Record
Workspace.undrain(self, pod: str) -> None
Workspace.unpause(self, scope: str) -> None
""",
    "dispatcher.matrix": """
class Entry(JobKeys)
Entry.digest(self) -> str
Entry.document(self) -> dict[str, Any]
Entry.has(self, key: str) -> bool
Entry.limited_to(self, time_limit: str | None) -> Self
Entry.owned_by(self, user: str | None) -> Self
Entry.shape(self) -> Hashable
Entry.value(self, key: str) -> Any
Entry.job_id: str
Entry.method: str
Entry.params: Mapping[str, Any]
Entry.command: str | tuple[str, ...] | None
Entry.gpu_memory_mib: int | None
Entry.gpus: int | None
Entry.needs: tuple[str, ...]
Entry.priority: int
Entry.retries: int | None
Entry.retry_on: tuple[str, ...] | None
Entry.time_limit_s: float | None
Entry.env: Mapping[str, str]
Entry.env_file: str | None
Entry.cwd: str | None
Entry.outlet: tuple[str, ...]
Entry.resources: Mapping[str, Any]
Entry.container: Container | None
Entry.queue_limit_s: float | None
Entry.job: str | None
Entry.config: Mapping[str, Any]
Entry.imports: tuple[str, ...]
Entry.snapshot: bool | None
Entry.user: str | None
Entry.slurm: SlurmOptions | None
Entry.pbs: PbsOptions | None
Entry.order: int
Entry.written: Mapping[str, Any]
class Manifest
Manifest.path: Path
Manifest.entries: Mapping[str, Entry]
expand(sweep: Mapping[str, Any] | str | os.PathLike[str]) -> list[dict[str, Any]]
load_manifest(path: str | os.PathLike[str], known_ids: Collection[str] = ()) -> Manifest
write_manifest(path: str | os.PathLike[str], entries: Iterable[Mapping[str, Any]], known_ids: Collection[str] = (), check: Callable[[Manifest], None] | None = None) -> Manifest
""",
    "dispatcher.contract": """
ALIVE_FILE = 'alive'
ATTEMPT = 'DISPATCHER_ATTEMPT'
ATTEMPT_DIR = 'DISPATCHER_ATTEMPT_DIR'
BATCH_SIZE = 'DISPATCHER_BATCH_SIZE'
BOOTSTRAP_FILE = 'bootstrap.py'
CGROUP = 'DISPATCHER_CGROUP'
CGROUP_FILE = 'cgroup'
CHECKPOINT_FILE = 'checkpoint.json'
CLEANED_FILE = 'cleaned.json'
CODE_COMMIT = 'DISPATCHER_CODE_COMMIT'
CODE_DIGEST = 'DISPATCHER_CODE_DIGEST'
CODE_FILE = 'code'
ENTRY_FILE = 'entry.json'
EXIT_COMPLETE = 79
EXIT_DONE = 0
EXIT_FILE = 'exit.json'
EXIT_PREEMPTED = 75
GPU_MEMORY = 'DISPATCHER_GPU_MEMORY_MIB'
GPU_USE_FILE = 'gpu-use.json'
JOB_ID = 'DISPATCHER_JOB_ID'
JOB_WORDS = ('output_dir', 'checkpoints', 'project', 'group', 'restore', 'accept_changes', 'tensor_shards')
KILL_GRACE = 'DISPATCHER_KILL_GRACE_S'
LOG_FILE = 'output.log'
METRICS_FILE = 'metrics.jsonl'
NODE_FILE = 'node.sh'
OUTPUTS_FILE = 'script-outputs.json'
PASSWORD_FILE = 'node.password'
POD = 'DISPATCHER_POD'
PROGRESS_FILE = 'progress.json'
PROVENANCE_FILE = 'provenance.json'
PROVENANCE_HOST_FILE = 'provenance-host.json'
RESULT_FILE = 'result.json'
ROOT = 'DISPATCHER_ROOT'
RUN_COMPLETED = 'completed'
RUN_FAILED = 'failed'
RUN_FILE = 'run.json'
RUN_PREEMPTED = 'preempted'
RUN_RUNNING = 'running'
SETUP_FILE = 'setup.sh'
SLOT_FILE = 'slot.json'
SPEED = 'speed/'
STOP_FILE = 'stop'
SUBMISSION_FILE = 'submission.json'
SUPERSEDED_FILE = 'superseded'
TAKEN_FILE = 'taken'
TOLD_FILE = 'told'
WRAPPER_FILE = 'job.sh'
attempt_dir() -> Path | None
report_checkpoint(step: int) -> None
report_progress(step: int, of: int, **metrics: float) -> None
report_result(**values: float | str | None) -> None
""",
    "dispatcher.runtime": """
class ApiRollouts(BasicJob)
ApiRollouts.__init__(self, spec: ExecutionSpec) -> None
ApiRollouts.authorization(self, key: str) -> Mapping[str, str]
ApiRollouts.config_classes(cls) -> tuple[type[Any], ...]
ApiRollouts.failed(self, error: str) -> Any
ApiRollouts.fault(self, response: Any) -> str | None
ApiRollouts.parse(self, response: Any) -> Any
ApiRollouts.request(self, body: Any) -> HttpRequest
ApiRollouts.requests(self) -> Source
ApiRollouts.result(self, rows: Iterable[Any]) -> Row | None
ApiRollouts.run(self) -> Row | None
ApiRollouts.write_rows(self, name: str, rows: Iterable[Any], *, merged: Callable[[Any], Any] | None = None) -> Row
ApiRollouts.PREEMPTION_TIMEOUT_S: float
class Arrays
Arrays.__init__(self, tree: Any) -> None
class BasicJob
BasicJob.__init__(self, spec: ExecutionSpec) -> None
BasicJob.checked_config(cls, *layers: Config | Mapping[str, Any], where: str = 'configuration', complete: bool = True) -> Config
BasicJob.checkpoint_classes(cls) -> tuple[type[Any], ...]
BasicJob.config(cls) -> type[Any] | Sequence[type[Any]]
BasicJob.config_classes(cls) -> tuple[type[Any], ...]
BasicJob.done
BasicJob.finish(self) -> None
BasicJob.local(cls, root: str | os.PathLike[str], name: str = 'local', project: str | None = None, group: str | None = None) -> Self
BasicJob.main_process(self) -> bool
BasicJob.run(self) -> Row | None
BasicJob.saved_row(self) -> Row | None
BasicJob.sync(self, name: str) -> None
BasicJob.wait(self) -> None
class CheckpointedJob(BasicJob)
CheckpointedJob.__init__(self, spec: ExecutionSpec) -> None
CheckpointedJob.contents(self, suffix: str) -> Contents
CheckpointedJob.contents_from_path(self, rel_path: str) -> Contents
CheckpointedJob.described(self, beside: Contents | None = None) -> Contents
CheckpointedJob.exit_preempted(self) -> NoReturn
CheckpointedJob.leaves_from_path(self, rel_path: str) -> Mapping[str, Leaf]
CheckpointedJob.load(self, suffix: str, target: Any, *, partial: bool = False) -> Restored
CheckpointedJob.load_from_path(self, rel_path: str, target: Any, *, partial: bool = False) -> Restored
CheckpointedJob.metadata(self, suffix: str) -> Mapping[str, Any]
CheckpointedJob.metadata_from_path(self, rel_path: str) -> Mapping[str, Any]
CheckpointedJob.model_classes(cls) -> tuple[type[Any], ...]
CheckpointedJob.path_of(self, suffix: str) -> str
CheckpointedJob.preempted
CheckpointedJob.resume(self, target: Any, *, partial: bool = False) -> Restored | None
CheckpointedJob.retention(self) -> Retention | None
CheckpointedJob.rewind(self, suffix: str) -> None
CheckpointedJob.save(self, suffix: str, pytree: Any, **how: Any) -> CheckpointRef
CheckpointedJob.save_from_path(self, rel_path: str, pytree: Any, *, step: int = 0, metadata: Mapping[str, Any] | None = None, metrics: Mapping[str, float] | None = None, beside: Contents | None = None, resumable: bool = False) -> CheckpointRef
CheckpointedJob.saving
CheckpointedJob.wait(self) -> None
CheckpointedJob.PREEMPTION_TIMEOUT_S: float
CheckpointedJob.RENAMED_FROM: ClassVar[Mapping[str, str]]
class EvaluationJob(RestoreableJob)
EvaluationJob.__init__(self, spec: Any) -> None
EvaluationJob.checkpoint_classes(cls) -> tuple[type[Any], ...]
EvaluationJob.config(cls) -> type[Any] | Sequence[type[Any]]
EvaluationJob.model_classes(cls) -> tuple[type[Any], ...]
EvaluationJob.restore_from_path(self, rel_path: str) -> None
EvaluationJob.run(self) -> Row
EvaluationJob.TRAINER: type[Trainer[Any, Any]]
class InferenceJob(ModelJob)
InferenceJob.__init__(self, spec: Any) -> None
InferenceJob.arrays
InferenceJob.checkpoint_classes(cls) -> tuple[type[Any], ...]
InferenceJob.config(cls) -> type[Any] | Sequence[type[Any]]
InferenceJob.config_classes(cls) -> tuple[type[Any], ...]
InferenceJob.forward(self, model: M, batch: Any) -> Any
InferenceJob.from_trainer(cls, trainer: Trainer[Any, M]) -> Self
InferenceJob.gather(self, tree: Any) -> Any
InferenceJob.generate(self, prompts: Sequence[str | Chat], max_new_tokens: int, encoding: Encoding, **sampling: Any) -> list[str]
InferenceJob.logits(self, model: M, tokens: Any, segment_ids: Any) -> jax.Array
InferenceJob.model
InferenceJob.pad(self, texts: Sequence[Sequence[int]], *, rows: int = 0, seq_len: int = 0) -> Prompts
InferenceJob.predict(self, rows: Any, *, batch_size: int | None = None) -> Any
InferenceJob.restore_from_path(self, rel_path: str) -> None
InferenceJob.rollout(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, *, temperature: float = 0.0, stop_token: int | None = None, seed: int = 0, batch_size: int | None = None) -> list[list[int]]
InferenceJob.setup
InferenceJob.AXIS_RULES: ClassVar[Mapping[str, Any]]
class Mean
Mean.__init__(self, total: jax.Array, weight: jax.Array) -> None
Mean.of(cls, value: Any) -> Mean
Mean.total: jax.Array
Mean.weight: jax.Array
class RestoreableJob(CheckpointedJob)
RestoreableJob.check_model(self, restored: Restored) -> None
RestoreableJob.checkpoints(cls, spec: ExecutionSpec) -> list[CheckpointRef]
RestoreableJob.from_checkpoint(cls, suffix: str, spec: ExecutionSpec, runtime_cfg: Config | Mapping[str, Any] | None = None) -> Self
RestoreableJob.from_checkpoint_path(cls, rel_path: str, spec: ExecutionSpec, runtime_cfg: Config | Mapping[str, Any] | None = None) -> Self
RestoreableJob.latest(cls, spec: ExecutionSpec) -> CheckpointRef | None
RestoreableJob.register(self, suffix: str) -> CheckpointRef
RestoreableJob.restore(self, suffix: str) -> None
RestoreableJob.restore_from_path(self, rel_path: str) -> None
class Source
Source.__init__(self, *args, **kwargs)
class State
State.__init__(self, step: jax.Array, key: jax.Array, params: Arrays, variables: Arrays, opt_state: Any, ema: Arrays, faults: jax.Array) -> None
State.model
State.replace(self, **changes: Any) -> State
State.tree
State.step: jax.Array
State.key: jax.Array
State.params: Arrays
State.variables: Arrays
State.opt_state: Any
State.ema: Arrays
State.faults: jax.Array
class Streamed
Streamed.__init__(self, rows: Any) -> None
Streamed.rows: Any
class Trainer(TrainerHooks)
Trainer.__init__(self, spec: Any) -> None
Trainer.axis_rules
Trainer.begin(self) -> None
Trainer.block_error(self, end: int, block: Block) -> FloatingPointError
Trainer.calibrate(self) -> None
Trainer.configuration_in_force
Trainer.done
Trainer.evaluated(self) -> dict[str, float]
Trainer.evaluator
Trainer.fresh_state(self) -> State
Trainer.hold_model(self, arrays: Arrays, steps_done: int) -> None
Trainer.live_state
Trainer.load_model(self, rel_path: str, like: Any = None) -> Arrays
Trainer.model_to_evaluate(self) -> Arrays
Trainer.prepare(self) -> None
Trainer.prepare_on(self, mesh: Mesh, microbatching: Microbatching, *, trains: bool = True) -> None
Trainer.probe_batch_size(self, per_device: int, accumulation_steps: int) -> None
Trainer.reads_each_step
Trainer.restore_from_path(self, rel_path: str) -> None
Trainer.roles
Trainer.run(self) -> Row | None
Trainer.run_block(self, batch: Any, steps: int, requested: jax.Array) -> Block
Trainer.save_state(self, *, name: str | None = None, pending_metrics: Mapping[str, float] | None = None) -> None
Trainer.setup
Trainer.update(self, batch: Any) -> dict[str, float]
Trainer.uses_best(self, evaluated: Mapping[str, float]) -> bool
Value
field(place: str, *, default: Any = MISSING, default_factory: Callable[[], Any] | Any = MISSING, renamed_from: str | Sequence[str] = (), **options: Any) -> Any
job(key: str) -> Callable[[J], J]
""",
    "dispatcher.runtime.training.hooks": """
class TrainerHooks(ModelJob)
TrainerHooks.__init__(self, spec: Any) -> None
TrainerHooks.config(cls) -> type[Any] | Sequence[type[Any]]
TrainerHooks.config_classes(cls) -> tuple[type[Any], ...]
TrainerHooks.data(self) -> Source | Streamed
TrainerHooks.evaluate(self, model: M, batch: Any) -> Mapping[str, Value]
TrainerHooks.evaluations(self) -> Mapping[str, Source]
TrainerHooks.flops(self, batch: Any) -> float | None
TrainerHooks.init_optimizer(self, params: Arrays) -> Any
TrainerHooks.loss(self, model: M, batch: Any, rngs: nnx.Rngs) -> Value | tuple[Value, dict[str, Value]]
TrainerHooks.on_step(self, step: int, metrics: Mapping[str, float]) -> None
TrainerHooks.optimizer(self) -> optax.GradientTransformation
TrainerHooks.result(self) -> Row | None
TrainerHooks.retention(self) -> Retention
TrainerHooks.roles
TrainerHooks.schedule(self) -> optax.Schedule
TrainerHooks.setup
TrainerHooks.start_from(self) -> Mapping[str, Any]
TrainerHooks.step(self, state: State, batch: Any) -> tuple[State, Mapping[str, Mean]]
TrainerHooks.CONFIG: type[Any]
TrainerHooks.TRAINABLE: ClassVar[nnx.filterlib.Filter]
TrainerHooks.BEST: ClassVar[tuple[str, Literal['min', 'max']] | None]
TrainerHooks.AXIS_RULES: ClassVar[Mapping[str, Any]]
TrainerHooks.UNIT: ClassVar[str]
""",
    "dispatcher.errors": """
class BatchSizeError(DispatcherError)
class CheckpointError(DispatcherError)
class CheckpointMismatchError(CheckpointError)
class CodeError(DispatcherError)
class ConfigError(DispatcherError)
class DamagedCheckpointError(CheckpointError)
class DamagedJournalError(StateError)
class DispatcherError(Exception)
class FormatError(StateError)
class LockError(DispatcherError)
class LockLostError(LockError)
class LockTimeoutError(LockError)
class LockUnsupportedError(LockError)
class ManifestError(DispatcherError)
class ModelStateError(DispatcherError)
class OutletError(DispatcherError)
class PodError(DispatcherError)
class RequestError(DispatcherError)
class StaleViewError(DispatcherError)
class StateError(DispatcherError)
class StatusFileError(StateError)
class StorageError(DispatcherError)
class SupersededError(CheckpointError)
class TemplateError(DispatcherError)
class TransitionError(StateError)
class UsageError(DispatcherError)
""",
    "dispatcher.runtime.execution": """
local(root: str | os.PathLike[str], name: str = 'local', project: str | None = None, group: str | None = None, *, tensor_shards: int = 1, checkpoints: str | None = None) -> ExecutionSpec
""",
    "dispatcher.runtime.http_api.exchange": """
class HttpRequest
HttpRequest.__init__(self, url: str, body: Any, headers: Mapping[str, str] = <factory>) -> None
HttpRequest.digest(self) -> str
HttpRequest.target
HttpRequest.url: str
HttpRequest.body: Any
HttpRequest.headers: Mapping[str, str]
""",
    "dispatcher.runtime.encoding": """
class ByteEncoding
ByteEncoding.decode(self, tokens: Sequence[int], /) -> str
ByteEncoding.encode(self, text: str, /) -> list[int]
ByteEncoding.vocab_size: Final
class Encoding
Encoding.__init__(self, *args, **kwargs)
Encoding.decode(self, tokens: Sequence[int], /) -> str
Encoding.encode(self, text: str, /) -> Sequence[int]
""",
    "dispatcher.runtime.jobs.lab_names": """
class CheckpointedJob(LabNames)
class InferenceJob(LabNames)
InferenceJob.mesh
InferenceJob.state
InferenceJob.state_sharding
class LabNames(CheckpointedJob)
LabNames.__init__(self, spec: Any) -> None
LabNames.block_size
LabNames.get_metadata(self, suffix: Path) -> dict[str, Any]
LabNames.get_metadata_from_path(self, rel_path: Path) -> dict[str, Any]
LabNames.get_tree(self, suffix: Path, template_tree: Any, partial: bool = False) -> Any
LabNames.get_tree_and_metadata(self, suffix: Path, template_tree: Any, partial: bool = False) -> tuple[Any, dict[str, Any]]
LabNames.get_tree_and_metadata_from_path(self, rel_path: Path, template_tree: Any, partial: bool = False) -> tuple[Any, dict[str, Any]]
LabNames.get_tree_from_path(self, rel_path: Path, template_tree: Any, partial: bool = False) -> Any
LabNames.local_replicas
LabNames.mesh
LabNames.per_device_batch_size
LabNames.replicas
LabNames.save_metadata(self, suffix: Path, metadata: Mapping[str, Any]) -> None
LabNames.save_metadata_from_path(self, rel_path: Path, metadata: Mapping[str, Any]) -> None
LabNames.save_tree(self, suffix: Path, tree: Any) -> None
LabNames.save_tree_and_metadata(self, suffix: Path, tree: Any, metadata: Mapping[str, Any]) -> None
LabNames.save_tree_and_metadata_from_path(self, rel_path: Path, tree: Any, metadata: Mapping[str, Any]) -> None
LabNames.save_tree_from_path(self, rel_path: Path, tree: Any) -> None
class ModelState
ModelState.__init__(self, params: Arrays, variables: Arrays) -> None
ModelState.params: Arrays
ModelState.variables: Arrays
class RestoreableJob(LabNames)
class Trainer(LabNames)
Trainer.mesh
Trainer.per_device_batch_size
Trainer.state_sharding
""",
    "dispatcher.runtime.jobs.pretrain": """
class Pretrain(LanguageTrainer)
""",
    "dispatcher.runtime.launching": """
make_job(cls: type[BasicJob[Any]], spec: ExecutionSpec, config: Config | Mapping[str, Any], *, restore: str | None = None, where: str = 'configuration') -> BasicJob[Any]
""",
    "dispatcher.runtime.registry": """
find_job(key: str) -> Any
import_jobs(root: Path, names: Iterable[str] = ()) -> list[str]
""",
    "dispatcher.runtime.adapters": """
adapted(model: nnx.Module) -> list[str]
add_adapters(module: nnx.Module, rank: int, *, rngs: nnx.Rngs, alpha: float | None = None, layers: str | Sequence[str] = '*', skip: str | Sequence[str] = ()) -> list[str]
merge_adapters(model: nnx.Module) -> None
""",
    "dispatcher.runtime.jobs.merge_adapters": """
class MergeAdapters(EvaluationJob)
MergeAdapters.run(self) -> Row
""",
    "dispatcher.runtime.language.tokens": """
class TokenWindows
TokenWindows.__init__(self, tokens: NDArray[Any], seq_len: int, *, vocab_size: int | None = None, where: str = 'the data') -> None
TokenWindows.from_file(cls, path: Path, seq_len: int, *, vocab_size: int | None = None) -> TokenWindows
class Tokens(tuple)
Tokens.inputs: ForwardRef('Any')
Tokens.targets: ForwardRef('Any')
Tokens.segment_ids: ForwardRef('Any')
negative_log_likelihood(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]
""",
    "dispatcher.runtime.language.trainer": """
class LanguageTrainer(Trainer)
LanguageTrainer.__init__(self, spec: Any) -> None
LanguageTrainer.config_classes(cls) -> tuple[type[Any], ...]
LanguageTrainer.data(self) -> Source | Streamed
LanguageTrainer.evaluations(self) -> Mapping[str, Source]
LanguageTrainer.flops(self, batch: Tokens) -> float | None
LanguageTrainer.loss(self, model: Any, batch: Tokens, rngs: nnx.Rngs) -> Value | tuple[Value, dict[str, Value]]
LanguageTrainer.UNIT: ClassVar[str]
""",
    "dispatcher.runtime.language.transformer": """
class Transformer
Transformer.__init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None
Transformer.decode(self, tokens: jax.Array, cache: KVCache, segment_ids: jax.Array | None = None) -> tuple[jax.Array, KVCache]
Transformer.init_cache(self, rows: int, capacity: int) -> KVCache
""",
}
# Modules that import JAX.
HEAVY = "dispatcher.runtime"


def lines_of(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from class_lines(name, value)
    elif callable(value):
        yield f"{name}{signature(value)}"
    elif isinstance(value, (str, int, tuple)):
        yield f"{name} = {value!r}"
    else:
        yield name


def class_lines(name: str, value: type) -> Iterator[str]:
    base = value.__mro__[1]
    bases = f"({base.__name__})" if base.__module__.partition(".")[0] in ("dispatcher", "builtins") else ""
    yield f"class {name}{bases}" if base is not object else f"class {name}"
    members = {} if issubclass(value, Exception) else vars(value)
    for member in sorted(members):
        found = inspect.getattr_static(value, member)
        inner = getattr(found, "__func__", found)
        if member != "__init__" and member.startswith("_"):
            continue
        if inspect.isfunction(inner):
            yield f"{name}.{member}{signature(inner)}"
        elif isinstance(found, (property, functools.cached_property)):
            yield f"{name}.{member}"
    for field, annotation in annotations(value).items():
        if not field.startswith("_"):
            yield f"{name}.{field}: {annotation_text(annotation)}"


def annotations(cls: type) -> dict[str, Any]:
    """The annotated fields of a class; of a struct, those of its bases in the package as well."""
    own: dict[str, Any] = vars(cls).get("__annotations__", {})
    bases = [base for base in cls.__mro__[1:] if issubclass(base, msgspec.Struct) and base is not msgspec.Struct]
    return typing.get_type_hints(cls) if bases else own


def annotation_text(kind: Any) -> str:
    """A type as one writes it, without what annotates it."""
    arguments = [annotation_text(one) for one in typing.get_args(kind)]
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(arguments, key="None".__eq__))
    if arguments:
        return f"{getattr(origin, '__name__', origin)}[{', '.join(arguments)}]"
    if kind is type(None):
        return "None"
    return "..." if kind is ... else kind.__name__ if isinstance(kind, type) else "Any" if kind is Any else str(kind)


def signature(function: Any) -> str:
    """The signature with its annotations as written."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
    text = re.sub(r"\b(typing|collections\.abc)\.", "", text)
    return re.sub(r"<dataclasses._MISSING_TYPE [^>]*>", "MISSING", text)


def found_in(module_name: str, listed: list[str]) -> list[str]:
    """The lines of all public names; of a module without `__all__`, of those that are listed."""
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None) or {re.split(r"\W", line.removeprefix("class "))[0] for line in listed}
    return [line for name in sorted(names) for line in lines_of(name, getattr(module, name, None))]


@pytest.mark.parametrize("module_name", PUBLIC)
def test_public_names_and_signatures(module_name: str) -> None:
    if module_name.startswith(HEAVY):
        pytest.importorskip("jax")
    listed = PUBLIC[module_name].strip().split("\n")
    found = found_in(module_name, listed)
    gone = [line for line in listed if line not in found]
    new = [line for line in found if line not in listed]
    assert not gone and not new, "\n".join(
        [
            f"the public names of {module_name} have changed. If that is intended, update PUBLIC in {__file__}",
            "and CHANGELOG.md; if not, restore the old names and signatures.",
            *(f"  gone: {line}" for line in gone),
            *(f"  new:  {line}" for line in new),
        ]
    )


def documented_imports() -> Iterator[tuple[str, str, str]]:
    """Each `from dispatcher... import name` that users are shown: where, module and name."""
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    pages += sorted((REPOSITORY / "dispatcher/runtime/tutorials").glob("*.md"))
    for path in pages:
        for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
            yield from imports_of(path, block)
    for path in sorted((REPOSITORY / "templates").glob("*.py")):
        yield from imports_of(path, path.read_text())


def imports_of(path: Path, code: str) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "dispatcher":
            yield from ((path.name, str(node.module), alias.name) for alias in node.names)


def test_what_users_are_shown_is_public() -> None:
    unlisted = []
    for page, module_name, name in documented_imports():
        lines = PUBLIC.get(module_name, "").split("\n")
        is_module = f"{module_name}.{name}" in PUBLIC
        if not is_module and not any(re.match(rf"(class )?{name}\b", line) for line in lines):
            unlisted.append(f"{page}: from {module_name} import {name}")
    assert not unlisted, "users are shown names that PUBLIC does not list:\n" + "\n".join(sorted(set(unlisted)))


def test_type_checkers_read_the_packages_annotations() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["dispatcher"]
    assert (REPOSITORY / "dispatcher" / "py.typed").is_file()
