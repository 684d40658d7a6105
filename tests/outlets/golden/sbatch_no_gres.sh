#!/bin/bash
#SBATCH --job-name=d-0123456789ab-0123456789abcdef
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --signal=B:USR1@60
#SBATCH --no-requeue
#SBATCH "--chdir=/nonexistent/a'; echo foo 100%"
#SBATCH "--output=/nonexistent/a'; echo foo 100%%/run_state/submissions/d-0123456789ab-0123456789abcdef/0.log"
#SBATCH --open-mode=append
#SBATCH --export=ALL
# The batch script of one submission to SLURM. Each task of the array runs the attempts of one group, one after the
# other, by their wrappers, and passes signals on to the one that runs.
directories=('/nonexistent/a'"'"'; echo foo 100%/run_state/jobs/j0/1')
groups=(0)

# A job that SLURM starts again by itself may find its first run alive, and the dispatcher counts attempts.
if ((${SLURM_RESTART_COUNT:-0} > 0)); then
    echo "job $SLURM_JOB_ID: started again by SLURM (restart $SLURM_RESTART_COUNT); not run, the dispatcher decides" >&2
    exit 1
fi

task=${SLURM_ARRAY_TASK_ID:-0}
directory=
wrapper=
was_told=
interrupted=

# The scheduler, or the dispatcher through it, wants the job to end.
stop() {
    was_told=1 interrupted=1
    [[ -z $wrapper ]] || kill -TERM "$wrapper" 2>/dev/null
}

# Kills at once what has the attempt of `directory` in its environment, also in sessions of its own, of which a scheduler
# may not know. What is being forked meanwhile is found by the next look.
kill_attempt() {
    local try file
    for try in 1 2 3; do
        for file in $(grep -lzxF -- "DISPATCHER_ATTEMPT_DIR=$directory" /proc/[0-9]*/environ); do
            kill -KILL "${file//[!0-9]/}"
        done
    done
} 2>/dev/null

# The dispatcher wants all of it killed at once, which SLURM does only after KillWait. The wrapper leads a session.
kill_all() {
    local file stat session
    was_told=1 interrupted=1
    [[ -n $wrapper ]] || return
    kill_attempt
    for file in /proc/[0-9]*/stat; do
        # The name of a program may have blanks and brackets.
        read -r stat <"$file" && read -r _ _ _ session _ <<<"${stat##*) }" || continue
        [[ $session != "$wrapper" ]] || kill -KILL "${file//[!0-9]/}"
    done
} 2>/dev/null

# Its time nears its end: that of its time limit, or, where a site sends the signal then, of a preemption.
near_end() {
    was_told=1 interrupted=1
    [[ -n $directory ]] || return
    is_preempted || write_new "$directory/stop" 'time limit'
    [[ -z $wrapper ]] || kill -TERM "$wrapper" 2>/dev/null
}

is_preempted() {
    [[ $(timeout 5 scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null) =~ \ PreemptTime=[0-9] ]]
}

write_new() {
    (set -o noclobber; printf '%s\n' "$2" >"$1") 2>/dev/null
}

# Of an attempt's directory, and why. Only who creates `taken` may begin an attempt, or say that it was not begun.
put_back() {
    local at
    write_new "$1/taken" "$HOSTNAME $$" || return
    TZ=UTC0 printf -v at '%(%Y-%m-%dT%H:%M:%S)T.000Z' -1
    printf '{"exit_code": 143, "reason": "%s", "ended_at": "%s"}\n' "$2" "$at" >"$1/exit.json"
}

# The wrapper leads a session of its own, and its job a process group in it. bash 5.2 loses the status of a process that
# ends while a signal interrupts `wait`; the wrapper has written it down.
run() {
    directory=$1
    DISPATCHER_ATTEMPT_DIR=$directory setsid bash "$directory/job.sh" &
    wrapper=$!
    [[ -z $was_told ]] || kill -TERM "$wrapper" 2>/dev/null
    while :; do
        interrupted=
        wait "$wrapper"
        status=$?
        [[ -n $interrupted ]] || break
    done
    if [[ -n $was_told && $(cat "$directory/exit.json" 2>/dev/null) =~ \"exit_code\":\ ([0-9]+) ]]; then
        status=${BASH_REMATCH[1]}
    fi
    directory=
    wrapper=
}

trap stop TERM INT
trap near_end USR1
trap kill_all USR2

status=0
for index in ${groups[task]}; do
    if [[ -n $was_told ]]; then
        put_back "${directories[index]}" preempted
    else
        run "${directories[index]}"
    fi
done
exit "$status"
