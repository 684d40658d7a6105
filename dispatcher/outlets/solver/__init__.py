"""Which host can run a request for hardware: pure rules over what the hosts report.

request    HardwareRequest and the answer to it, Solution.
reports    What one host reports: its GPUs, or the nodes of its partitions and queues; or why it cannot be reached.
solve      The rules that all kinds of hosts share: which hosts come into question, and in which order.
plain      Hosts without a scheduler, and which of their GPUs are busy.
asking     What an outlet would ask a scheduler for, and in which partitions or queues.
batch      Partitions of SLURM and queues of PBS: whether a request fits, now or some day.
slurm pbs  The questions to each scheduler, and reading its answers.
volcano    Queues of Volcano: what they limit, and how much of it is in use.
tpu        Cloud TPU VMs: whether there is one, and in which state.
free       What is free on one host, as the loop of a pod keeps it.
query      The questions of every kind, and reading their answers; survey: asking hosts, all at the same time.

A host that cannot be reached is refused with the error; it never counts as a host without free GPUs. A host of which
there is no report is judged by its configuration alone.
"""
