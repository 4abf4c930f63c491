"""Benchmarks: `python -m benchmarks` prints one JSON line each."""
