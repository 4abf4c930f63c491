"""The order in which a kube-scheduler tries pods, as recorded from a real one (tests/data/wire, scheduler reactions).

    add --> active --pop--> in flight --unschedulable--> waiting --any cluster event--> active
                 ^                   '---error--------> backing off (1, 2, 4, 8, 10 s) --time--> active
                 '------------------------------------------'

A refused pod (FailedNodes) sleeps until anything at all changes; one whose extender call failed sleeps for its back-off.
An event that happens while a pod is in flight makes its refusal count for nothing: it is tried again at once.
"""

from collections import OrderedDict, deque

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 10.0)


class ScheduleQueue:
    """Keys are pod uids. Times are the caller's, in seconds."""

    def __init__(self) -> None:
        self._active: deque[str] = deque()
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._backing_off: dict[str, float] = {}
        self._errors: dict[str, int] = {}
        self._in_flight: dict[str, bool] = {}

    def add(self, pod: str) -> None:
        """A new pending pod, or one whose bind failed and was already taken out of flight."""
        if pod not in self._active and pod not in self._in_flight:
            self._waiting.pop(pod, None)
            if pod not in self._backing_off:
                self._active.append(pod)

    def remove(self, pod: str) -> None:
        """The pod is bound, gone or finished."""
        if pod in self._active:
            self._active.remove(pod)
        self._waiting.pop(pod, None)
        self._backing_off.pop(pod, None)
        self._errors.pop(pod, None)
        self._in_flight.pop(pod, None)

    def pop(self, now: float) -> str | None:
        """The next pod to try; it is in flight until `refused`, `failed` or `remove` says how that went."""
        self._thaw(now)
        if not self._active:
            return None
        pod = self._active.popleft()
        self._in_flight[pod] = False
        return pod

    def next_thaw(self) -> float | None:
        """When the earliest back-off ends."""
        return min(self._backing_off.values(), default=None)

    def refused(self, pod: str) -> None:
        """No node fits."""
        woken = self._in_flight.pop(pod, None)
        if woken is None:
            return
        if woken:
            self._active.append(pod)
        else:
            self._waiting[pod] = None

    def failed(self, pod: str, now: float) -> None:
        """A call failed: filter Error, bind Error, time-out."""
        if self._in_flight.pop(pod, None) is None:
            return
        errors = self._errors.get(pod, 0)
        self._errors[pod] = errors + 1
        self._backing_off[pod] = now + BACKOFF_S[min(errors, len(BACKOFF_S) - 1)]

    def wake(self) -> None:
        """Something in the cluster changed: whoever was refused is tried again."""
        self._active.extend(self._waiting)
        self._waiting.clear()
        for pod in self._in_flight:
            self._in_flight[pod] = True

    def _thaw(self, now: float) -> None:
        for pod, until in list(self._backing_off.items()):
            if until <= now:
                del self._backing_off[pod]
                self._active.append(pod)
