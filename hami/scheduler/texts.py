"""The sentences that kube-scheduler gets in `Error`. Fixed: a text that varies from call to call makes it spin.

Numbers, ages and names of holders belong in events, metrics and `hami explain`.
"""

from typing import Final

NOT_STARTED: Final = "hami is starting"
REPLAYING: Final = "hami is not ready: it has not read the event log up to its head yet"
NO_INVENTORY: Final = "hami is not ready: it has not seen the cluster's nodes, pods and quotas yet"
VIEW_BROKEN: Final = "hami is not ready: its view of the event log is broken"
STORE_AWAY: Final = "hami: the event store cannot be reached"
STORE_UNSAFE: Final = "hami: the event store must not be used by this scheduler"
STALE: Final = "hami: the view of the cluster is older than allowed"
CONTENDED: Final = "hami: other schedulers changed the cluster three times in a row during this decision"
SLOW: Final = "hami: the decision was not written in time"
BROKEN_PROMISE: Final = "hami: internal error, see the scheduler's log"

NO_RESERVATION: Final = "hami: this pod holds no live reservation on this node"
DEVICES_GONE: Final = "hami: a device reserved for this pod, or its node, is no longer fit for use"
LOCK_BUSY: Final = "hami: another bind on this node is still running"
NODE_LOCKED: Final = "hami: the node's lock annotation is somebody else's"
LOCK_LOST: Final = "hami: the node lock was lost during this bind"
BIND_UNKNOWN: Final = "hami: the Kubernetes API did not say whether the binding was written"
BIND_SLOW: Final = "hami: this bind was not finished in time"
MIG_SLOW: Final = "hami: the node did not make the MIG instance in time"
BOUND_ELSEWHERE: Final = "hami: the pod is bound to another node"
