#!/bin/bash
# The batch script of one submission to PBS: runs its attempts one after the other.
submission='/w/a'"'"'; echo foo/run_state/submissions/d-0123'
# How many seconds an attempt may need, and how many the job has; 0: no limit.
attempt_s=3900
walltime_s=7800
export DISPATCHER_SUBMISSION_DIR=$submission

# PBS starts jobs again after a failed node or a preemption, also some that were submitted with -r n. Whoever creates
# the file runs; where it cannot be created (the disk is full), the file `taken` of each attempt still refuses.
write_new() {
    (set -o noclobber; printf '%s\n' "$2" >"$1") 2>/dev/null
}
if ! write_new "$submission/started" "$PBS_JOBID $HOSTNAME" && [[ -s $submission/started ]]; then
    echo "dispatcher: error: not run again, as it was started before (job, host): $(<"$submission/started")" >&2
    exit 91
fi

# The session is what PBS kills, so each wrapper leads a process group in it and no session of its own.
set -m
wrapper=
told=
interrupted=
stop() {
    told=$1 interrupted=1
    [[ -z $wrapper ]] || kill -s "$1" "$wrapper" 2>/dev/null
}
trap 'stop TERM' TERM
trap 'stop INT' INT

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

# PBS itself kills what is in the session of this script.
kill_all() {
    told=KILL interrupted=1
    [[ -z $wrapper ]] || kill_attempt
}
trap kill_all USR2

# Not SECONDS, which follows the time of day, and that may jump.
uptime_s() {
    read -r now_s _ </proc/uptime
    now_s=${now_s%.*}
}
uptime_s
begun_s=$now_s

# Whether another attempt can end before the walltime is over.
has_time() {
    ((walltime_s && attempt_s)) || return 0
    uptime_s
    ((now_s - begun_s + attempt_s <= walltime_s))
}

# Of an attempt's directory, and why. Only who creates `taken` may begin an attempt, or say that it was not begun.
put_back() {
    local at
    write_new "$1/taken" "$HOSTNAME $$" || return
    TZ=UTC0 printf -v at '%(%Y-%m-%dT%H:%M:%S)T.000Z' -1
    printf '{"exit_code": 143, "reason": "%s", "ended_at": "%s"}\n' "$2" "$at" >"$1/exit.json"
}

# Where the filesystem has no locks at all, the wrapper does without its liveness lock.
lock_argument() {
    (
        exec {lock}<>"$1/alive" || exit 2
        flock --nonblock "$lock"
    ) 2>/dev/null
    (($? <= 1)) || echo none
}

# Of one attempt: its directory, and the arguments of `env` for its wrapper. A signal ends `wait`, and with `set -m` so
# does a wrapper that PBS has suspended.
status=0
has_run=
run() {
    local directory=$1
    shift
    if [[ -n $told ]] || { [[ -n $has_run ]] && ! has_time; }; then
        put_back "$directory" 'not reached'
        return
    fi
    has_run=1
    env "$@" bash "$directory/job.sh" $(lock_argument "$directory") &
    wrapper=$!
    [[ -z $told ]] || kill -s "$told" "$wrapper" 2>/dev/null
    while :; do
        interrupted=
        wait "$wrapper"
        status=$?
        [[ -n $interrupted || -n $(jobs -rp; jobs -sp) ]] || break
    done
    wrapper=
}

run '/w/a'"'"'; echo foo/run_state/jobs/a/1' -u OLD 'DISPATCHER_ATTEMPT_DIR=/w/a'"'"'; echo foo/run_state/jobs/a/1'
run '/w/a'"'"'; echo foo/run_state/jobs/b'"'"'$(x)/1' -u OLD 'DISPATCHER_ATTEMPT_DIR=/w/a'"'"'; echo foo/run_state/jobs/b'"'"'$(x)/1'

if [[ -n $told ]]; then
    # So that PBS says that it was told to end, whatever the attempt made of it.
    trap - "$told"
    kill -s "$told" $$
fi
exit "$status"
