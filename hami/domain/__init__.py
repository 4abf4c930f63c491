"""The nouns: ids, quantities with units, devices, requests, allocations, the cluster as decisions see it.

Pure. No I/O, no clock, no randomness, no logging, no environment; the caller passes `now`.
Everything else may import this room; this room imports nothing of hami.
"""
