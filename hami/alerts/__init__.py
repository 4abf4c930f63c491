"""Alerts: notices from committed events to the outside. Rules in `decide/` are pure; sinks and the consumer around them act.

Nothing here writes the log or decides about the cluster: it reads, tells, and remembers what it told in its consumer group.
"""
