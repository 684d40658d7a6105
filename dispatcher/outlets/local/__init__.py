"""Attempts as processes of this host: GPUs, slots, processes."""
