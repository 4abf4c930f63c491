"""The simulated kube-scheduler tries pods in the order a real one was seen to."""

from hami.sim.schedulequeue import ScheduleQueue


def test_pods_are_tried_in_the_order_they_came() -> None:
    queue = ScheduleQueue()
    for pod in ("a", "b", "c"):
        queue.add(pod)
    assert [queue.pop(0.0) for _ in range(4)] == ["a", "b", "c", None]


def test_a_refused_pod_sleeps_until_something_changes() -> None:
    queue = ScheduleQueue()
    queue.add("a")
    queue.pop(0.0)
    queue.refused("a")
    assert queue.pop(3600.0) is None
    queue.wake()
    assert queue.pop(3600.0) == "a"


def test_a_change_while_in_flight_makes_the_refusal_void() -> None:
    queue = ScheduleQueue()
    queue.add("a")
    queue.pop(0.0)
    queue.wake()
    queue.refused("a")
    assert queue.pop(0.0) == "a"


def test_errors_back_off_longer_each_time_up_to_ten_seconds() -> None:
    queue = ScheduleQueue()
    queue.add("a")
    now, waits = 0.0, []
    for _ in range(6):
        assert queue.pop(now) == "a"
        queue.failed("a", now)
        queue.wake()
        assert queue.pop(now) is None, "a change does not shorten a back-off"
        thaw = queue.next_thaw()
        assert thaw is not None
        waits.append(thaw - now)
        now = thaw
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_removed_pod_is_never_tried_again() -> None:
    queue = ScheduleQueue()
    queue.add("a")
    queue.pop(0.0)
    queue.remove("a")
    queue.refused("a")
    queue.failed("a", 0.0)
    queue.wake()
    assert queue.pop(100.0) is None


def test_adding_twice_tries_once() -> None:
    queue = ScheduleQueue()
    queue.add("a")
    queue.add("a")
    assert queue.pop(0.0) == "a"
    queue.add("a")
    assert queue.pop(0.0) is None
