"""Keeps the log for ever and the store small: seals what was written, trims what is sealed and nobody needs.

`decide/` is pure: how far may be trimmed. Correctness rests on the order of steps, not on the lease: nothing is trimmed that is
not sealed, and sealing the same place twice fails for the second one.
"""
