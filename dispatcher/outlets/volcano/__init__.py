"""Attempts as Jobs of Volcano in a Kubernetes cluster (`type: volcano`).

kubectl     The words of every call of kubectl, and what its failures mean.
"""
