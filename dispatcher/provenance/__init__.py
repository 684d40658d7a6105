"""What each attempt ran from: its code, its interpreter and packages, its host. Recorded beside its start.

    record      the structs of provenance.json: Provenance, GitState, Interpreter, HostFacts
    blobs       what attempts share: differences of the code and lists of packages, named after their content
    read        the provenance of an attempt, from the pod's file and the host's
    origin      what a pod knows of an attempt when it starts it (outlets/origin.py makes it)
    collector   the thread that looks and writes, beside the loop
    code        the code as git has it, cached: status and difference from git, untracked files, submodules
    git         git that runs nothing which a repository names; remotes: addresses without secrets
    programs    programs with a deadline, killed with their children
    interpreters  the Python of a command and its packages
    host_report the program by which another Python, or another host (templates/node.sh.j2), reports what it is

On this host the pod records everything. Elsewhere the attempt's first node writes `provenance-host.json` beside the
command (see `tell_facts` in node.sh.j2), which comes home with the other reports.

A record is written once, atomically, and never changed. One that is missing means "not recorded": the pod was killed,
the disk was full, or `provenance: false`. A field that is absent is unknown, and `problems` says why.
"""
