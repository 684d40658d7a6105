"""What runs around an attempt's command on a node: the script node.sh, made from the configuration of a host.

setup        NodeSetup: what a node needs, from the cluster and the host; the file that names the shipped code.
containers   Words of the command lines of container runtimes.
script       Rendering of node.sh, and of the files that it reads.

The order of its steps, what each reports and what is cleaned up are described in docs/outlets/node.md.
"""
