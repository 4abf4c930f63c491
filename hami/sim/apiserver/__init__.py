"""A Kubernetes API server for tests and the demo: what the real one does on the wire for the kinds hami touches, in memory."""
