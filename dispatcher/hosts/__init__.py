"""The hosts and clusters that a lab has besides the machines on which its dispatchers run.

types      Frozen types of clusters and hosts, of every kind.
read       Parsing of the keys `clusters`, `hosts`, `priority` and `gres_mapping`; every fault at once.

The format is that of the `~/.theseus.yaml` that labs already have. The keys are in dispatcher.yaml, or in a file that
is given with `--hosts FILE`. What is done on a host is a matter of outlets/; nothing here connects to one.

To add a kind of host: a subclass of Host in types.py, its keys and a line in read.py: _KINDS, and its outlet.
To add a key of a host: a field in types.py and a line in the table of its kind in read.py.
"""
