"""Attempts as jobs of PBS (OpenPBS 19 or later, PBS Professional 18 or later: `qstat -F json`).

scheduler   The Scheduler of `type: pbs` hosts: which programs are called, and what their exit statuses mean.
resources   What an attempt asks for, in the words of qsub.
arguments   The other arguments of qsub, and which of them `pbsbatch_args` must not contradict.
states      What `qstat -f -F json` tells of a job.

The scripts are templates/pbs.sh.j2 and templates/pbs_nodes.sh.j2.
"""
