"""The agent: carries out operations on a host, and ends. Sent there with every call, so nothing has to be installed.

It reads one request from stdin (the length of the compressed JSON as a line, the JSON, then the content of the files to
store), and writes one answer: a line with the request's nonce and a length, then so much compressed JSON. Whatever a
login shell prints before or after is skipped by that. What the operations mean is described in operations.py.

The modules of this package run on hosts with Python 3.6. They import the standard library and each other, and know the
dispatcher only by the names in names.py. agent_source.py makes one program of them; this file itself is not sent.

names      Names that the dispatcher knows too, and the exception for what cannot be done.
facts      What this host is.
programs   Running programs.
locks      Kernel locks.
writing    Files of attempts.
storing    Large files.
gpus       The GPUs of this host.
attempts   Which attempts are alive as processes of this host.
reading    What attempts have written.
signals    Stopping them.
machine    This machine as a whole, and its place among several.
launching  Starting attempts.
main       A request and its answer.
"""

# Each after those that it imports.
MODULES = (
    "names",
    "facts",
    "programs",
    "locks",
    "writing",
    "storing",
    "gpus",
    "attempts",
    "reading",
    "signals",
    "machine",
    "launching",
    "main",
)
