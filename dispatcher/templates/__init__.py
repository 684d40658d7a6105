"""Training scripts, launcher scripts and command lines: what jobs are started from.

training, launcher, command: rendering. shell: quoting for bash. shell_syntax: commands that only a shell could run,
which are refused. readiness: faults that prevent a start; job_python: a Python without this package. check: those, and
parameters that nothing reads. spelling: misspelt keys. bootstrap: the template of the script that runs a job class
where the workspace is not seen; it is read as data, never imported.
"""
