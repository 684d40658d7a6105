#!/bin/bash
# Runs the command of an attempt on one node: `[srun ...] bash node.sh COMMAND...`. First it sets up what the command
# needs, and afterwards it cleans up, however the command has ended. Its exit status is that of the command. It needs
# bash 4.2 or later.
umask g=rwx
dispatcher_directory='/lab/a'"'"'; echo foo $(touch pwned)/run_state/jobs/fft_s42/3'
workspace='/lab/a'"'"'; echo foo $(touch pwned)'
read -r node </proc/sys/kernel/hostname
node=${node//[^A-Za-z0-9._-]/_}
rank=${SLURM_PROCID-${PMIX_RANK-${PMI_RANK-${OMPI_COMM_WORLD_RANK-${DISPATCHER_PROCESS_ID-0}}}}}
[[ $rank =~ ^[0-9]+$ ]] || rank=0
# Set by what starts tasks on several nodes and ends all when the status of one is not 0.
status_by_file=${DISPATCHER_STATUS_BY_FILE-}
unset DISPATCHER_STATUS_BY_FILE
private=
runner=
told_by=
status=1
# Descriptors that a child must not inherit, because a lock is held as long as any process has them open.
held=()
# Those of locks that are held for a moment.
taken=()

close_held() {
    local fd
    for fd in "${!held[@]}"; do
        exec {fd}>&-
    done
}

hold() {
    held[$1]=1
}

close_lock() {
    local fd=$1
    exec {fd}>&-
    unset -v "held[$fd]"
}

# A set-up that fails is told apart from a command that fails: the wrapper reads the file.
fail() {
    if [[ -n $told_by ]]; then
        [[ $told_by == INT ]] && exit 130
        exit 143
    fi
    echo "dispatcher: error: $node: $2" >&2
    mark_failed
    exit "$1"
}

mark_failed() {
    echo "$node" >"$dispatcher_directory/node.failed"
}

write_new() {
    (set -o noclobber; printf '%s\n' "$2" >"$1") 2>/dev/null
}

# What happens to the others afterwards is only a consequence: the wrapper goes by what the first of all ranks has written.
tell_first() {
    write_new "$dispatcher_directory/node.first" "$1"
}

# For a process that outlives the attempt: removes the variables by which processes of an attempt are found, and closes
# all descriptors, the liveness lock among them.
detach_from_attempt() {
    local fd name
    for fd in /proc/$BASHPID/fd/*; do
        fd=${fd##*/}
        ((fd < 3)) || exec {fd}>&-
    done
    for name in "${!DISPATCHER_@}"; do
        unset -v "$name"
    done
}

show() {
    local text=
    [[ ! -s $1 ]] || text=$(tail -n 20 -- "$1")
    [[ -z $text ]] || printf '%s\n' "$text" >&2
}

# Whoever stops an attempt signals its process group, or every process of a step: then the sentinel is dead, and the
# command has been told. A signal that only this process has got is passed on. A command is never told twice, because
# many programs take a second signal as an order to leave without saving.
told() {
    interrupted=1
    [[ -z $told_by ]] || return
    told_by=$1
    tell_first "signal $1"
    # Until it has ended: one that is killed first leaves this.
    [[ -z $status_by_file ]] || echo 137 >"$dispatcher_directory/node.$rank.status"
    [[ -n $runner ]] || return
    sleep 0.5
    ! kill -0 "$sentinel" || kill "-$1" $(<"/proc/$runner/task/$runner/children")
} 2>/dev/null

# Runs words as a child that signals reach as if it were started by hand, and waits for its end.
supervise() {
    local ended_with
    # Messages of bash about a child that a signal has ended would hide the last line of the log.
    {
        trap : TERM INT
        close_held
        (trap - TERM INT; exec 2>&"$said" {said}>&-; "$@")
        ended_with=$?
        echo "$ended_with" >"$private/status"
        exit "$ended_with"
    } <&0 {said}>&2 2>/dev/null &
    runner=$!
    while :; do
        interrupted=
        wait "$runner"
        ended_with=$?
        [[ -n $interrupted ]] || break
    done
    # bash may lose the status of a child that ends while a trap runs other programs: `wait` then tells 255.
    [[ ! -s $private/status ]] || read -r ended_with <"$private/status"
    rm -f -- "$private/status"
    runner=
    return "$ended_with"
}

# Waits for a lock and takes it, within a limit, because the process that holds it may hang.
try_lock() {
    local lock_fd
    while :; do
        exec {lock_fd}>>"$1" || return
        hold "$lock_fd"
        if ! flock --exclusive --wait "$2" "$lock_fd"; then
            close_lock "$lock_fd"
            return 1
        fi
        # The file may have been removed meanwhile.
        [[ ! /proc/$BASHPID/fd/$lock_fd -ef $1 ]] || break
        close_lock "$lock_fd"
    done
    taken+=("$lock_fd")
}

lock() {
    try_lock "$1" "$2" || fail 1 "$3: waited for $2 s for another process of this node, lock $1"
}

# Releases the lock that was taken last.
unlock() {
    local last=$((${#taken[@]} - 1))
    close_lock "${taken[last]}"
    unset -v "taken[last]"
}

# What several processes of a node use (a mount, a tree) has a file that each of them locks as long as it lives, so that
# the last one knows that it is the last, whatever has killed the others. Only with the lock on `$1.lock`.
join() {
    exec {users_fd}>>"$1.users" && flock --shared "$users_fd" || fail 1 "the lock $1.users cannot be taken"
    hold "$users_fd"
}

leave() {
    close_lock "$users_fd"
    local fd answer
    exec {fd}>>"$1.users"
    flock --exclusive --nonblock "$fd"
    answer=$?
    exec {fd}>&-
    return "$answer"
}

# Sets the variable `$1` to the path `$2`, in which `~` and `$NAME` stand for what they are on this node. Nothing else is
# read by the shell.
expand() {
    local path=$2 expanded= name
    [[ $path != "~" && $path != "~/"* ]] || path="\$HOME${path:1}"
    while [[ $path =~ ^([^\$]*)\$(([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})(.*)$ ]]; do
        name=${BASH_REMATCH[3]}${BASH_REMATCH[4]}
        expanded+=${BASH_REMATCH[1]}${!name-}
        path=${BASH_REMATCH[5]}
        [[ -n ${!name-} ]] || fail 1 "the directory $2: the variable $name is not set on this node"
    done
    printf -v "$1" %s "$expanded$path"
}

make_private() {
    local base=/tmp/dispatcher-$UID
    mkdir -m 700 -- "$base" 2>/dev/null
    if [[ ! -d $base || -L $base || ! -O $base ]]; then
        fail 1 "$base is needed for locks, and is not a directory of this user"
    fi
    locks=$base
    local folder fd own pid
    exec {fd}<"$base" && flock --exclusive --wait 60 "$fd" || fail 1 "the lock on $base cannot be taken"
    # Directories of scripts that were killed: no process has them locked. That there is no such pid does not prove it,
    # because a container has pids of its own. One that removes its own meanwhile is no error of this job's log.
    for folder in "$base"/node.*/; do
        pid=${folder#"$base/node."}
        [[ ! -d $folder || -d /proc/${pid%%.*} ]] || flock --exclusive --nonblock "$folder" rm -rf -- "$folder" 2>/dev/null
    done
    find "$base" -maxdepth 1 -name 'work-*.lock' -mmin +60 -exec bash -c \
        'flock --nonblock "$1" flock --nonblock "${1%.lock}.users" rm -f -- "$1" "${1%.lock}.users"' sweep {} \;
    private=$(mktemp -d -- "$base/node.$$.XXXXXX") || fail 1 "no temporary directory can be made in $base"
    exec {own}<"$private" && flock --shared "$own"
    hold "$own"
    exec {fd}<&-
}

# By which people find the job that the log belongs to.
tell_job() {
    local job=
    if [[ -n ${SLURM_ARRAY_JOB_ID-} ]]; then
        job="job ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID of SLURM"
    elif [[ -n ${SLURM_JOB_ID-} ]]; then
        job="job $SLURM_JOB_ID of SLURM"
    elif [[ -n ${PBS_JOBID-} ]]; then
        job="job $PBS_JOBID of PBS"
    fi
    [[ -z $job ]] || echo "dispatcher: note: $job, on $node" >&2
}

set_variables() {
    export 'MODULEPATH=/sw/$(id)' 'WORD_0=a b' 'WORD_1=it'"'"'s' 'WORD_2=say "x"' 'WORD_3=$(touch pwned)' 'WORD_4=`id`' 'WORD_5=; rm -rf x' 'WORD_6=--flag' 'WORD_7=-' $'WORD_8=two\012lines' 'WORD_9=ünï ↦ 字' 'WORD_10=*' 'WORD_11=' 'WORD_12=\' $'WORD_13=\011' 'WORD_14=$HOME' 'WORD_15=!1' 'WORD_16=#' 'WORD_17=~' 'WORD_18=a=b' 'WORD_19=&'
    unset CUDA_DEVICE_ORDER
    return 0
}

find_modules() {
    local file
    [[ $(type -t module) != function ]] || return 0
    for file in ${LMOD_PKG:+"$LMOD_PKG/init/bash"} ${MODULESHOME:+"$MODULESHOME/init/bash"} \
        /etc/profile.d/{lmod,z00_lmod,00-modulepath,modules}.sh \
        /usr/share/{lmod/lmod,modules,Modules}/init/bash /opt/cray/pe/lmod/lmod/init/bash; do
        [[ ! -r $file ]] || source "$file"
        [[ $(type -t module) != function ]] || return 0
    done
    return 1
}

# Environment Modules 3 reports a missing module on stderr only, with status 0.
load_modules() {
    local name answer said=$private/module
    for name in cuda/12.4 'it'"'"'s; rm -rf x'; do
        find_modules >/dev/null 2>&1 || fail 1 "module $name: there is no module command on this host"
        module load "$name" >"$said" 2>&1 </dev/null
        answer=$?
        if ((answer)) || grep -qE '(^|:)ERROR:' "$said"; then
            show "$said"
            fail 1 "module $name cannot be loaded (status $answer)"
        fi
    done
}

is_mounted() {
    mountpoint --quiet -- "$juicefs_root"
}

# The daemon must outlive this attempt when another one uses the mount. The password is in its environment alone.
start_juicefs() {
    detach_from_attempt
    export META_PASSWORD
    exec juicefs mount --background --no-usage-report --cache-size 1024 --all-squash 1000:1000 "${juicefs_cache[@]}" --log "$locks/juicefs.log" \
        redis://:@meta:6379/1 "$juicefs_root"
} </dev/null

find_juicefs() {
    type -P juicefs >/dev/null && return
    [[ -x $HOME/.local/bin/juicefs ]] && PATH=$HOME/.local/bin:$PATH
}

mount_juicefs() {
    local said=$private/juicefs boot META_PASSWORD=${META_PASSWORD-}
    read -r boot </proc/sys/kernel/random/boot_id
    expand juicefs_root '/mnt/it'"'"'s'
    juicefs_cache=()
    expand juicefs_cache '$SCRATCH/juice'
    juicefs_cache=(--cache-dir "$juicefs_cache")
    juicefs_lock=$locks/juicefs-651d72485b2f06c3
    find_juicefs || fail 1 "juicefs: there is no such program on PATH=$PATH, and mount asks for it: install it, or set \
juicefs_installer"
    lock "$juicefs_lock.lock" 300 "JuiceFS at $juicefs_root"
    join "$juicefs_lock"
    juicefs_users=$users_fd
    if ! is_mounted; then
        [[ ! -r $dispatcher_directory/node.password ]] ||
            IFS= read -r -d '' META_PASSWORD <"$dispatcher_directory/node.password"
        # A mount whose daemon was killed has to be taken away first.
        [[ -d $juicefs_root ]] || juicefs umount --force "$juicefs_root" >"$said" 2>&1
        mkdir -p -- "$juicefs_root" || fail 1 "JuiceFS: the directory $juicefs_root cannot be made"
        supervise start_juicefs >"$said" 2>&1
        local answer=$?
        if ((answer)) || ! is_mounted; then
            show "$said"
            fail 1 "JuiceFS cannot be mounted at $juicefs_root (status $answer); its log: $locks/juicefs.log"
        fi
        printf '%s\n' "$boot" >"$juicefs_lock.ours"
    fi
    unlock
}

# A mount that was there before the attempts came (that of an administrator) stays.
unmount_juicefs() {
    local boot ours=
    read -r boot </proc/sys/kernel/random/boot_id
    try_lock "$juicefs_lock.lock" 60 || return
    users_fd=$juicefs_users
    leave "$juicefs_lock" || return
    [[ ! -r $juicefs_lock.ours ]] || read -r ours <"$juicefs_lock.ours"
    [[ $ours == "$boot" ]] || return
    juicefs umount "$juicefs_root" && rm -f -- "$juicefs_lock.ours"
} >/dev/null 2>&1

# A directory for this attempt and node. Users may share what is above it, as they share /tmp.
make_work() {
    local base=${DISPATCHER_WORK_OVERRIDE-}
    [[ -n $base ]] || expand base '$SCRATCH/it'"'"'s work'
    if [[ -z $base ]]; then
        # Not a directory where others may have made `dispatcher-work` before: its owner could exchange the code in it.
        base=$locks
        [[ ! -O ${TMPDIR-} || -k $TMPDIR ]] || base=$TMPDIR
    fi
    local folder
    mkdir -p -- "$base" || fail 1 "the work directory $base cannot be made"
    for folder in "$base/dispatcher-work" "$base/dispatcher-work/"0123456789ab; do
        mkdir -- "$folder" 2>/dev/null && chmod 1777 -- "$folder"
    done
    attempt_work=$folder/fft_s42.3
    here=$attempt_work/$node
    mkdir -m 700 -- "$attempt_work" 2>/dev/null
    [[ -d $attempt_work && ! -L $attempt_work && -O $attempt_work ]] ||
        fail 1 "the work directory $attempt_work cannot be made, or is not this user's"
    mkdir -p -- "$here" || fail 1 "the work directory $here cannot be made"
    work_lock=$locks/work-0123456789ab-fft_s42.3
}

extract() {
    local digest=$1 archive=$2 found
    [[ ! -d $tree ]] || return 0
    [[ -f $archive && -r $archive ]] || fail 1 "the code archive $archive is not there or cannot be read"
    found=$(sha256sum <"$archive")
    [[ ${found%% *} == "$digest" ]] ||
        fail 1 "the code archive $archive is damaged: its SHA-256 is ${found%% *}, expected $digest"
    rm -rf -- "$here/.tree"
    mkdir -- "$here/.tree" || fail 1 "$here/.tree cannot be made"
    tar --extract --no-same-owner --no-same-permissions --directory "$here/.tree" --file - <"$archive" ||
        fail 1 "the code archive $archive cannot be extracted into $here"
    # What the command writes below run_state belongs to the attempt, not to the extracted code.
    rm -rf -- "$here/.tree/run_state"
    ln -s -- "$workspace/run_state" "$here/.tree/run_state" && mv -T -- "$here/.tree" "$tree" ||
        fail 1 "$tree cannot be made"
    echo "dispatcher: note: code ${digest:0:12} in $tree on $node" >&2
}

remove_work() {
    try_lock "$work_lock.lock" 60 || return
    users_fd=$work_users
    # Without code there is nothing but the /tmp of a container. A set-up that has failed, on a full disk for example,
    # leaves nothing: its tree would fill the disk further.
    [[ -z $tree || -n $told_by || ! -e $private/started ]] || ((status == 0 || status == 75)) || : >"$here/failed"
    if leave "$work_lock"; then
        if [[ ! -e $here/failed ]]; then
            # Directories without write permission, such as those of a cache of Go modules.
            rm -rf --one-file-system -- "$here" || { chmod -R u+rwx -- "$here" && rm -rf --one-file-system -- "$here"; }
            rmdir -- "$attempt_work"
        fi
        rm -f -- "$work_lock.users" "$work_lock.lock"
    fi
    unlock
} 2>/dev/null

# Which GPUs the attempt was given: `visible` are their indices or UUIDs, where those are known; `gpus` is their number.
# Fails where there are none, and for one that runs on several nodes, because this node knows nothing of the others.
know_gpus() {
    [[ ${SLURM_NNODES-1} == 1 && ${DISPATCHER_NUM_PROCESSES-1} == 1 ]] || return
    visible=()
    gpus=2
    if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
        visible=(${CUDA_VISIBLE_DEVICES//,/ })
        gpus=${#visible[@]}
    fi
    ((gpus))
}

is_given() {
    local word
    ((${#visible[@]})) || return 0
    for word in "${visible[@]}"; do
        [[ $1 != "$word" && ($word != GPU-* || $2 != "$word"*) ]] || return 0
    done
    return 1
}

# Sets `percent` to how busy the busiest of them was in the last second. Fails where that is unknown: without a driver,
# with MIG, and where a GPU that is in use may be somebody else's.
look_at_gpus() {
    local said fields at index uuid shown=0 most=0 IFS=$',\n'
    said=$(timeout --foreground -k 1 10.0 \
        nvidia-smi --query-gpu=index,uuid,utilization.gpu --format=csv,noheader,nounits) || return
    fields=($said)
    for ((at = 0; at + 2 < ${#fields[@]}; at += 3)); do
        index=${fields[at]//[[:space:]]/} uuid=${fields[at + 1]//[[:space:]]/} percent=${fields[at + 2]//[[:space:]]/}
        is_given "$index" "$uuid" || continue
        [[ $percent =~ ^[0-9]{1,3}$ ]] || return
        ((shown++))
        ((percent <= most)) || most=$percent
    done
    percent=$most
    ((shown == gpus || (shown > gpus && !percent)))
}

# Writes for how long all of them have been at 0 %, and the number of the sample, by which readers see that it is new.
# Ends with node.sh, which has the other end of its input.
watch_gpus() {
    local fd visible gpus percent samples=0 since_s= known_s=0 begun_s now_s IFS=$' \t\n'
    for fd in /proc/$BASHPID/fd/*; do
        fd=${fd##*/}
        ((fd < 3)) || exec {fd}>&-
    done
    set -f
    type -P nvidia-smi && know_gpus || return
    read -r begun_s _ </proc/uptime
    begun_s=${begun_s%.*}
    while :; do
        if look_at_gpus; then
            read -r now_s _ </proc/uptime
            now_s=${now_s%.*}
            # The driver's figure is of the last second, and one sample may be missing.
            ((!percent && now_s - known_s <= 11)) || since_s=
            ((percent)) || since_s=${since_s:-$((now_s > begun_s ? now_s - 1 : begun_s))}
            known_s=$now_s
            ((samples++))
            printf '{"samples": %d, "gpus": %d, "idle_s": %d}\n' \
                "$samples" "$gpus" $((since_s ? now_s - since_s : 0)) >"$dispatcher_directory"/gpu-use.json
        fi
        read -r -t 0.25
        (($? > 128)) || return
    done
} >/dev/null 2>&1

# Which variables the command gets in a container: all but those that describe the host's own programs and its login.
# The configured ones in any case. Names only: values are no business of whoever lists processes.
passed_names() {
    local name
    passed=(MODULEPATH WORD_0 WORD_1 WORD_2 WORD_3 WORD_4 WORD_5 WORD_6 WORD_7 WORD_8 WORD_9 WORD_10 WORD_11 WORD_12 WORD_13 WORD_14 WORD_15 WORD_16 WORD_17 WORD_18 WORD_19)
    for name in $(IFS=$' \n'; compgen -e); do
        case $name in
            PATH | LD_* | PYTHONHOME | PYTHONPATH | VIRTUAL_ENV | CONDA* | HOME | PWD | OLDPWD | SHLVL | SHELL | _ | \
                TMPDIR | TMP | TEMP | HOSTNAME | USER | LOGNAME | MAIL | LS_COLORS | DISPLAY | XAUTHORITY | BASH* | \
                DBUS_* | SSH_* | XDG_* | LMOD* | MODULE* | LOADEDMODULES* | _LMFILES_* | _ModuleTable* | MANPATH | \
                INFOPATH | CPATH | LIBRARY_PATH | META_PASSWORD | CONTAINERS_*) ;;
            *) passed+=("$name") ;;
        esac
    done
}

# Each rank has a /tmp of its own. Of the directories those that are there; the others cannot be mounted.
mount_directories() {
    local folder path
    # First, because what is below it would be hidden.
    mount_into "$dispatcher_tmp" /tmp
    for path in '/lab/a'"'"'; echo foo $(touch pwned)' '/data/it'"'"'s' '~/results' "$dispatcher_here"; do
        expand folder "$path"
        [[ ! -d $folder ]] || mount_into "$folder" "$folder"
    done
}

mount_into() {
    container_words+=(--bind "$1:$2")
}

# These runtimes take all variables of the host but these two.
add_environment() {
    local name
    for name in MODULEPATH WORD_0 WORD_1 WORD_2 WORD_3 WORD_4 WORD_5 WORD_6 WORD_7 WORD_8 WORD_9 WORD_10 WORD_11 WORD_12 WORD_13 WORD_14 WORD_15 WORD_16 WORD_17 WORD_18 WORD_19; do
        [[ $name != PATH && $name != LD_LIBRARY_PATH ]] || export APPTAINERENV_"$name=${!name}"
    done
}

add_gpus() {
    [[ -z ${CUDA_VISIBLE_DEVICES-all} ]] || container_words+=(--nv)
    return 0
}

add_place() {
    container_words+=(--pwd "$dispatcher_cwd")
    container_end=("$dispatcher_image")
}

# The digest that the tag has now, as the registry tells who has no login; nothing where it does not. Registries answer with
# the place where a token is to be had first.
tag_source='the registry, asked without a login,'
tag_digest() {
    local url='https://registry-1.docker.io/v2/it'"'"'s/jax/manifests/1' head realm= service= scope= token
    local ask=(curl --silent --location --connect-timeout 5 --max-time 20) accept=(-H 'Accept: application/vnd.oci.image.index.v1+json' -H 'Accept: application/vnd.docker.distribution.manifest.list.v2+json' -H 'Accept: application/vnd.oci.image.manifest.v1+json' -H 'Accept: application/vnd.docker.distribution.manifest.v2+json')
    head=$("${ask[@]}" --head "${accept[@]}" "$url") || return
    # The answers of a proxy, and those that lead elsewhere, come before that of the registry.
    if [[ $head =~ HTTP/[0-9.]+\ 401 ]]; then
        [[ ! $head =~ [Rr]ealm=\"([^\"]*)\" ]] || realm=${BASH_REMATCH[1]}
        [[ ! $head =~ [Ss]ervice=\"([^\"]*)\" ]] || service=${BASH_REMATCH[1]}
        [[ ! $head =~ [Ss]cope=\"([^\"]*)\" ]] || scope=${BASH_REMATCH[1]}
        token=$("${ask[@]}" --get "$realm" --data-urlencode "service=$service" --data-urlencode "scope=$scope")
        [[ $token =~ \"(access_)?token\":\ *\"([^\"]+)\" ]] || return
        head=$("${ask[@]}" --head "${accept[@]}" -H "Authorization: Bearer ${BASH_REMATCH[2]}" "$url") || return
    fi
    [[ ! $head =~ [Dd]ocker-[Cc]ontent-[Dd]igest:\ *sha256:([0-9a-f]{64}) ]] || echo "${BASH_REMATCH[1]}"
}

# A tag may move. What it was an hour ago at most is in a file beside the images; attempts that use what it was before keep
# that, because each digest has an image of its own.
follow_tag() {
    local known=$folder/9a531fbf44c549b6c091b0c5339906aa5a28cffc62ec11810c506960425da8ba.tag digest=
    if [[ -z $(find "$known" -mmin -60 2>/dev/null) ]]; then
        digest=$(tag_digest)
        if [[ -n $digest ]]; then
            echo "$digest" >"$known.$node.$$" && mv -f -- "$known.$node.$$" "$known"
        else
            # Not asked again by every attempt.
            touch -- "$known"
            tag_is_unknown=1
        fi
    fi
    [[ -r $known ]] && read -r digest <"$known"
    [[ $digest =~ ^[0-9a-f]{64}$ ]] || return 0
    image=$folder/$digest.${image##*.}
    reference='docker://it'"'"'s/jax'@sha256:$digest
} 2>/dev/null

# An image is converted once for the cluster. The lock saves work and nothing depends on it: where locks do not exclude,
# several convert, each to a file of its own, and the last rename wins.
get_image() {
    local folder temporary waited=0 fd tag_is_unknown= reference='docker://it'"'"'s/jax:1'
    expand folder '/share/it'"'"'s/images'
    image=$folder/9a531fbf44c549b6c091b0c5339906aa5a28cffc62ec11810c506960425da8ba.sif
    mkdir -p -- "$folder" || fail 1 "the directory of images $folder cannot be made"
    follow_tag
    [[ -z $tag_is_unknown || ! -s $image ]] || echo "dispatcher: note: $node: $tag_source did not tell which image "'docker://it'"'"'s/jax:1'" is now: \
the one that was converted before is used" >&2
    # The time tells when it was last used.
    [[ ! -s $image ]] || { touch -c -- "$image"; return 0; }
    exec {fd}>>"$image.lock" || fail 1 "the lock $image.lock cannot be opened"
    hold "$fd"
    # Status 1 means that another one has it; anything else, that this filesystem has no locks.
    while
        flock --exclusive --wait 1 "$fd"
        (($? == 1))
    do
        ((waited)) || echo "dispatcher: note: $node: another attempt converts "'docker://it'"'"'s/jax:1'" into $image" >&2
        ((waited += 1))
        [[ -z $told_by ]] || fail 1 stopped
        ((waited < 1800)) || fail 1 "waited for $waited s for another attempt \
that converts the image; if none does, remove $image.lock"
    done
    if [[ ! -s $image ]]; then
        find "$folder" -maxdepth 1 -name '.*.part' -mmin +1440 -exec rm -rf {} +
        find "$folder" -maxdepth 1 -regextype posix-extended -regex '.*/[0-9a-f]{64}\.(sif|sqsh)(\.lock)?' -mtime +60 \
            ! -path "$image*" -exec rm -f {} +
        temporary=$folder/.${image##*/}.$node.$$.part
        echo "dispatcher: note: $node: converting "'docker://it'"'"'s/jax:1'" into $image" >&2
        supervise apptainer pull "$temporary" "$reference" && mv -f -T -- "$temporary" "$image"
        if [[ ! -s $image ]]; then
            rm -f -- "$temporary"
            fail 1 "the image "'docker://it'"'"'s/jax:1'" cannot be converted"
        fi
    fi
    close_lock "$fd"
}

# The lines of the setup count, not those of a script that they source or of a function, which may try what fails.
setup_line_failed() {
    local line
    ((${#BASH_SOURCE[@]} == dispatcher_depth + 2)) || return
    mapfile -t -s $(($1 - 1)) -n 1 line <"${BASH_SOURCE[1]}"
    echo "dispatcher: error: setup, line $1, exit status $2: ${line[*]}"
    exit "$2"
} >&2

# After a setup: a trap of it for EXIT runs when the command has ended, or could not begin, and does not change the status.
dispatcher_keep_trap() {
    dispatcher_trap=$(trap -p EXIT)
    [[ -z $dispatcher_trap ]] || trap 'dispatcher_leave "$?"' EXIT
}

dispatcher_leave() {
    trap - EXIT
    (eval "$dispatcher_trap"; exit "$1")
    exit "$1"
}

# Becomes the command, unless there is such a trap to run afterwards. Who stops an attempt tells its whole group, and with
# it the command, for which this shell then waits.
dispatcher_become() {
    [[ -n $dispatcher_trap ]] || exec -- "$@"
    trap : TERM INT
    (trap - EXIT TERM INT; exec -- "$@")
    exit
}

# Adds to the log $2 how a setup has ended its shell itself, with status $1: `exit 0` says nothing, and bash's message about
# an unbound variable looks like no error. What has failed in other ways was told before.
tell_end_of_setup() {
    local last
    ! grep -q '^dispatcher: error:' -- "$2" || return
    last=$(tail -c 1000 -- "$2" | tail -n 1)
    echo "dispatcher: error: setup: it ended its shell with exit status $1 before the command (last line: ${last:-none})" >>"$2"
}

# The last line of the file says that it was reached: a syntax error is not, and `[ -e x ] && . x` may end with 1.
set_up() {
    local dispatcher_status dispatcher_setup_is_read= dispatcher_depth=${#BASH_SOURCE[@]}
    # That of this script is not for its children.
    trap - EXIT
    trap 'setup_line_failed "$LINENO" "$?"' ERR
    source "$dispatcher_directory/setup.sh"
    dispatcher_status=$?
    trap - ERR
    if [[ -z $dispatcher_setup_is_read ]] && ((dispatcher_status)); then
        echo "dispatcher: error: setup: exit status $dispatcher_status" >&2
        exit "$dispatcher_status"
    fi
    dispatcher_keep_trap
}

launch() {
    cd -- "$dispatcher_cwd" || fail 1 "the directory $dispatcher_cwd cannot be entered"
    # Under names that no setup has for variables of its own.
    local dispatcher_here=$here dispatcher_tmp=$here/tmp.$rank dispatcher_image=$image \
        dispatcher_container=${container_name-}
    mkdir -p -m 700 -- "$dispatcher_tmp" || fail 1 "$dispatcher_tmp cannot be made"
    set_up
    IFS=$' \t\n'
    set +u
    : >"$dispatcher_private/started"
    local container_words=(apptainer exec) container_end=()
    mount_directories
    add_gpus
    add_environment
    add_place
    dispatcher_become "${container_words[@]}" --bind '/d$(id):/d$(id)' '--x=it'"'"'s $(id)' "${container_end[@]}" "$@"
}

# What an attempt leaves that was stopped or puts itself back is of no use to anybody; what a failed one leaves may be.
finish() {
    status=$?
    trap '' TERM INT
    trap - EXIT
    cd /
    # A step that has failed may have left locks.
    while ((${#taken[@]})); do
        unlock
    done
    [[ -z ${work_users-} ]] || remove_work
    [[ -z ${juicefs_users-} ]] || unmount_juicefs
    [[ -z $private ]] || rm -rf -- "$private"
    [[ -n $told_by ]] || ((status == 0)) || tell_first "status $status"
    # The others got the signal as well, and have time to save.
    if [[ -n $status_by_file ]] && echo "$status" >"$dispatcher_directory/node.$rank.status" && [[ -n $told_by ]]; then
        status=0
    fi
    exit "$status"
}

coproc sentinel_pipe {
    trap : TERM INT
    (trap - TERM INT; exec cat) >/dev/null
} 2>/dev/null
sentinel=$!
trap finish EXIT
trap 'told TERM' TERM
trap 'told INT' INT

((rank)) || tell_job
make_private
dispatcher_private=$private
# Modules may need them (MODULEPATH), and they have the last word.
set_variables
load_modules
set_variables
mount_juicefs
tree=
dispatcher_cwd=$workspace
code=()
[[ ! -r $dispatcher_directory/code ]] || mapfile -t code <"$dispatcher_directory/code"
    make_work
    lock "$work_lock.lock" 1800 "the code in $here"
    join "$work_lock"
    work_users=$users_fd
if ((${#code[@]})); then
    export DISPATCHER_CODE_DIGEST=${code[0]} DISPATCHER_CODE_COMMIT=${code[1]}
    tree=$here/tree
    extract "${code[0]}" "${code[2]}"
    # Not DISPATCHER_ROOT, which stays the workspace: the tree is removed, and checkpoints are kept below the root.
    dispatcher_cwd=$tree
fi
[[ -z ${work_users-} ]] || unlock
type -P apptainer >/dev/null || fail 1 apptainer": there is no such program on PATH=$PATH"
image='docker://it'"'"'s/jax:1'
get_image
[[ -z $told_by ]] || fail 1 stopped
((rank)) || { exec {gpus_fd}> >(watch_gpus) && hold "$gpus_fd"; }
supervise launch "$@"
status=$?
if [[ ! -e $private/started ]]; then
    [[ -z $told_by ]] || fail 1 stopped
    mark_failed
    tell_end_of_setup "$status" "$dispatcher_directory/output.log"
    ((status)) || status=1
fi
exit "$status"
