"""The vocabulary of facts and the log that keeps them.

`catalog/`, `envelope.py`, `codec.py` and `upcast.py` are pure. `log.py` and `lease.py` are the Protocols that the rest of
hami speaks; `memory.py` is their verified fake, `redis/` the real thing.
"""
