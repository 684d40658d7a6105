"""The hosts and clusters that a lab has besides the machines on which its dispatchers run.

types      Frozen types of clusters and hosts, of every kind, with their keys in files.
fields     Types of single values, such as paths of hosts and names on command lines.
read       Parsing of the keys `clusters`, `hosts`, `priority` and `gres_mapping`; every fault at once.

The format is that of the `~/.theseus.yaml` that labs already have. The keys are in dispatcher.yaml, or in a file that
is given with `--hosts FILE`. What is done on a host is a matter of outlets/; nothing here connects to one.

To add a kind of host: a subclass of Host in types.py, its name in AnyHost, and its outlet.
To add a key of a host: an annotated field of its struct in types.py (base/schema/).
"""
