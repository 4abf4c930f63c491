"""The only code that imports redis: log, locks, inbox, checkpoints, leases, keys and server functions."""
