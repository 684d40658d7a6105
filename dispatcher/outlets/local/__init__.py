"""Attempts as processes of this host.

outlet      The seam: submits, polls, cancels, adopts.
spawn       Starting a wrapper, with the liveness lock that its tree inherits.
tree        The processes of one attempt: wrapper, strays, signals, deadlines.
processes   Which processes of this host belong to an attempt; reaping: children that this process has inherited.
recovery    How attempts of dead dispatchers have ended.
oom         Whether the kernel has killed processes for lack of memory.
capacity    Which slots are free, by gpu_shares (GPUs, by number or memory) and budget (CPUs and memory of the host);
            offer: what others read of them (all pure). host_amounts: what there is.
slot_file, slot_variables
            What was counted for an attempt, for the next dispatcher; and what the attempt is told of it.
cgroups, cgroup_files
            Holding attempts to the CPUs and the memory that they ask for, where the host allows it.
gpus, nvml, gpu_users, gpu_monitor
            GPUs: reading them, who uses them, and which cannot be used now. given: which of them the pod may use.
gpu_use, gpu_sampler
            Attempts that leave their GPUs idle: what samples prove (pure), and the thread that takes them.
gpu_minutes The last hour of the GPUs, which the same thread publishes (pure).
"""

from __future__ import annotations

from typing import Final

NAME: Final = "local"
