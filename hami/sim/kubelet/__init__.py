"""A kubelet for tests and the demo: the real device-plugin and pod-resources protocols on real sockets, containers imagined.

It behaves as a recorded kubelet 1.36 does wherever hami can tell: order of calls, reuse of init devices, texts of refusals,
checkpoint, restart, the slow way of device changes to the node object.
"""
