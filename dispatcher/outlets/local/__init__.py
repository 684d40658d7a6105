"""Attempts as processes of this host.

outlet      The seam: submits, polls, cancels, adopts.
spawn       Starting a wrapper, with the liveness lock that its tree inherits.
tree        The processes of one attempt: wrapper, strays, signals, deadlines.
processes   Which processes of this host belong to an attempt; reaping: children that this process has inherited.
recovery    How attempts of dead dispatchers have ended.
oom         Whether the kernel has killed processes for lack of memory.
capacity    Which GPUs and CPU slots are free; offer: what others read of them (both pure).
gpus, nvml, gpu_users, gpu_monitor
            GPUs: reading them, who uses them, and which cannot be used now.
gpu_use, gpu_sampler
            Attempts that leave their GPUs idle: what samples prove (pure), and the thread that takes them.
gpu_minutes The last hour of the GPUs, which the same thread publishes (pure).
"""

from __future__ import annotations

from typing import Final

NAME: Final = "local"
