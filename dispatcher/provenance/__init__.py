"""What each attempt ran from: its code, its interpreter and packages, its host. Recorded beside its start.

    record      the structs of provenance.json: Provenance, GitState, Interpreter, HostFacts
    blobs       what attempts share: differences of the code and lists of packages, named after their content
    read        the provenance of an attempt, from the pod's file and the host's

A record is written once, atomically, and never changed. One that is missing means "not recorded": the pod was killed,
the disk was full, or `provenance: false`. A field that is absent is unknown, and `problems` says why.
"""
