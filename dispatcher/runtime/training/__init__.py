"""A training of any model, on any mesh, from any data, that resumes bit for bit.

  hooks        TrainerHooks: what a user writes or replaces.
  trainer      Trainer: the job around the hooks. Everything else serves it, and imports neither of the two.
  loop         Blocks of steps, and between them evaluations, checkpoints, metrics, preemption.
  setup        The parts that the hooks and the configuration make, before there is any array: hooks are data here.
  state        All that a step depends on; compiled: the functions that are compiled, and where the state lives;
               model_arrays: those of the model in a checkpoint.
  step         One step, traced: gradients over microbatches, the update, averages, what was not finite.
  averages     Statistics of normalization for averaged parameters.
  updating     The call of an Optax optimizer: gradients as it expects them, and what it wants beside them.
  values       Losses and metrics: a value for each row, added up with weights, divided once.
  data         Sources and streams of rows, batches of them on the devices; order: which row comes when; loader:
               threads that read ahead.
  identity     Which data a training used: saved with each checkpoint, and compared when the training resumes.
  placement    The mesh, logical axes, partition specs, FSDP.
  precision    The types of parameters, computation and outputs.
  evaluation   Metrics over all rows of named sources, and which checkpoint is the best.
  policy       When a training saves or leaves, decided by all processes together.
  speed        Step time, rows per second, time waited for data, MFU.
  surroundings What the bits depend on beside code, settings and data; divergence: errors of what is not finite;
               skipped: steps that are left out for that.
  config       The settings.

A step. `Trainer.step(state, batch)` is traced under the mesh and the axis rules, and returns the next state and the
metrics as sums and weights. A block of `steps_per_call` steps is one call of a compiled function: one step, or a
`lax.scan` of the same step. Its metrics are read while the next block runs, so the devices always have work queued.

Exactness. With the same number and kind of devices, the same XLA flags, jaxlib and code, a training that was killed
anywhere ends with the bits of one that was not. The state has everything that a step depends on: parameters, the
model's other variables, the optimizer's state, averages, the step's number, and the key that every step derives its own
from. The rows of step n are a function of the seed, n and the batch size, so the number of processes may change between
two attempts. What the bits depend on is saved with each checkpoint. When a training resumes, a difference is logged;
other data end it, unless that is accepted.

Checkpoints. One is saved before each evaluation, so that a kill between the two costs no step: the next attempt
begins with the evaluation. Process 0 requests those by time with a block, and all processes take the greatest request
from the block's result: go on, save, save and leave, stop. No save is requested while one is in progress.
"""
