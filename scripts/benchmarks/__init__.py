"""What a dispatcher costs, row by row: `scripts/bench` prints a table and writes a JSON file with every sample.

A machine that does other things too gives other seconds at every run. So every figure is a ratio of two things that
were measured in the same run, in turns (A B C, C B A, ...): each round gives the ratio of its medians, and the table
shows the median of these with the smallest and the largest. Only where a promise is made in seconds does a target
stand against seconds. A missed target is shown as missed; nothing here fails because of it.

    row         what is measured                                    beside it
    claim       one claim, at 1,200 and at 100,000 entries          flock, mkdir, append and fsync in a bare loop
    lab         claims per second at 1,200 and 100,000 entries      load, change, dump the whole JSON under flock
    contention  1, 4, 16 processes claim 2,000 entries, none twice  1 process
    turnover    end of one job to the start of the next on a slot   spawning bash
    throughput  1,000 times /bin/true on 2 slots, end to end        parallel, task-spooler, nq, HyperQueue
    status      `dispatcher status` on 1,200 entries                python -c "import click"
    idle        memory and processor time with nothing to do        a bare interpreter; one core
    opening     100,000 entries and 400,000 journal lines           reading and decoding the same bytes
    million     memory of a pod and `dispatcher status`, 1,000,000      reading the same files
    nfs         claims and turnover on NFS v4.2 and v3              the bare loop and bash on the same host
    step        a step of Trainer                               a bare jitted loop of the same model
    hold        how long a save of 1 GB holds up a training         copying it from the device to the host
    save        save and restore 1 GB, checksums included           plain Orbax
    start       a job from its start to its first step              a bare script
    batch       the search for the largest batch, on a GPU          what is remembered of it
    slurm       200 submissions as an array; calls for each poll    one sbatch for each; the poll interval
    hang        turnover of local slots, a host behind ssh hangs    one that answers

The rows from `step` to `batch` need the packages of the extra `jax` (scripts/install jax). They run on the device that
JAX takes by default, a GPU where there is one, and say its name.

How it is built: a row (`rows/`) is a generator that yields `Figure`s. What is compared with what is an *arm*: it does
the thing some times and returns the seconds that each took. Arms that must not share a heap run as a `Worker`, a
process of its own. Whatever a row starts is stopped when it ends, also when it is interrupted.
"""
