"""What every package may import, the runtime included.

files: reading and writing on a directory that several hosts share. file_identity: whether a file was changed.
kernel_locks: flock and byte-range locks. mounts: the filesystem under a path. host: this host, its boot and its
processes. programs: child processes, with limits. values: the values of manifests, sweep files and dispatcher.yaml.
devices: which GPUs a process sees. running_limits: those of `max_running`. yaml_text: YAML. messages: counts and lists
of faults. lazy: names imported on first use. libraries: what to install where a library is missing. times: times and
durations for people. secrets: files that only their owner can read. temporary: temporary directories. outputs: results
and metrics that scripts leave in files of their own. terminal: text in the columns of a terminal. slow: what a person
waits for. storing: advice on a full or broken disk. group: directories that a group shares. parts: derived data in
files with checksums. users: the names of users. variables: environment variables of jobs. schema/: keys of files as
types. These modules import only each other, errors and contract.
"""
