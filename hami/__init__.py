"""hami: share accelerators between Kubernetes pods, on an event log."""
