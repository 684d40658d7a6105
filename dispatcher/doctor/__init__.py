"""Proofs about hosts, filesystems and locks: what `dispatcher doctor` prints and what a pod checks at its start."""
