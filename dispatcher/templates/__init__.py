"""What a job is started from: training scripts, launcher scripts and command lines.

training, launcher, command: rendering. shell_syntax: which commands need a shell, and are refused. readiness: what
keeps entries from being started. check: that, and parameters that nothing reads; spelling: which look misspelt.
"""
