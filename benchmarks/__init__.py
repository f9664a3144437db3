"""Paired measurements against the peers: `python -m benchmarks`, or `make bench`."""
