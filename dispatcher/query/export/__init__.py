"""Results and metrics of jobs for other programs, after the fact: TensorBoard and Weights & Biases.

A job is a run, whose name derives from the workspace and the job. `runs` reads what is exported, `marks` remembers what
was, so that another export takes only what has changed, and one that was interrupted continues. Their libraries are
imported in `tensorboard` and `wandb` alone.
"""
