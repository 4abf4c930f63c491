"""The fold as a whole: order, gaps, re-delivery, windows; checkpoints and digests of its state."""

import msgspec
import pytest

from hami.domain.device import Health
from hami.domain.errors import InvalidInput
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.governance import PolicyChanged
from hami.events.catalog.journal import IncarnationStarted
from hami.events.envelope import START, Envelope
from hami.events.log import Record, Undecodable
from hami.projections.checkpoint import SCHEMA, decode_state, digest_of, encode_state, schema_of
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from hami.projections.folds.errors import LogGap, LogRewritten
from hami.projections.folds.state import ClusterState, facts_of
from tests.support.builders import (
    a_bound,
    a_device,
    a_node_registered,
    a_position,
    a_released,
    a_reservation,
    a_reserved,
    again,
    records_of,
)

ONE = a_reservation()
STORY = records_of([a_node_registered(a_device()), a_reserved(ONE), a_bound(ONE), a_released(ONE)])


def replay(records: tuple[Record, ...], onto: ClusterState | None = None) -> ClusterState:
    state = onto or new_cluster()
    for record in records:
        apply(state, record)
    return state


def test_a_jump_in_the_log_is_an_error_and_changes_nothing() -> None:
    state = replay(STORY[:1])
    before = digest_of(state)
    with pytest.raises(LogGap, match=r"g=1 .* is followed by g=3") as gap:
        apply(state, STORY[2])
    assert (gap.value.last, gap.value.found) == (STORY[0].position, STORY[2].position)
    assert digest_of(state) == before
    assert state.position == STORY[0].position


def test_a_log_that_does_not_begin_at_its_beginning_is_a_gap() -> None:
    with pytest.raises(LogGap):
        apply(new_cluster(), STORY[1])


def test_records_already_applied_are_passed_over() -> None:
    state = replay(STORY)
    before = facts_of(state)
    replay(STORY, onto=state)
    assert facts_of(state) == before


def test_another_entry_in_the_last_place_is_noticed() -> None:
    state = replay(STORY[:2])
    other = msgspec.structs.replace(STORY[1], position=msgspec.structs.replace(STORY[1].position, entry="9-9"))
    with pytest.raises(LogRewritten, match="9-9"):
        apply(state, other)


def test_an_event_appended_again_moves_the_position_and_nothing_else() -> None:
    state = replay(STORY[:3])
    before = digest_of(state)
    replay(again(STORY[:3], after=3), onto=state)
    assert state.position.g == 6
    assert digest_of(state) == before


def test_a_new_epoch_of_a_producer_counts_its_sequence_anew() -> None:
    state = replay(STORY[:2])
    replay(records_of([a_released(ONE)], after=2, seq=1, epoch=2), onto=state)
    assert state.allocations == {}


def test_entries_without_a_readable_envelope_are_counted_each() -> None:
    state = new_cluster()
    nameless = Envelope(id="", type="", producer="", epoch=0, seq=0, data=msgspec.Raw(b"null"))
    for g in (1, 2):
        apply(state, Record(position=a_position(g), envelope=nameless, event=Undecodable("", "not JSON")))
    assert state.undecodable == {"": 2}
    assert state.nodes == {}


def test_a_snapshot_is_a_read_only_window() -> None:
    state = replay(STORY[:2])
    window = snapshot(state)
    assert window.g == 2
    with pytest.raises(TypeError):
        window.nodes["n2"] = window.nodes["n1"]  # type: ignore[index]
    replay(STORY[2:], onto=state)
    assert window.allocations == {}


def test_policy_and_incarnation_are_those_last_written() -> None:
    state = replay(records_of([IncarnationStarted(incarnation="A"), PolicyChanged(version="v2", settings={"node": "spread"})]))
    assert (state.incarnation, state.policy_version) == ("A", "v2")


def test_reading_the_whole_log_again_ends_where_the_running_state_stands() -> None:
    fault = DeviceHealthChanged(device="GPU-n-0", was=Health.HEALTHY, now=Health.UNHEALTHY, reason="xid 79")
    cleared = DeviceHealthChanged(device="GPU-n-0", was=Health.UNHEALTHY, now=Health.HEALTHY, reason="recovered")
    history = records_of([a_node_registered(a_device("GPU-n-0")), fault, fault, cleared])
    running, rebuilt = replay(history), replay(history)
    assert running.nodes["n1"].devices[0].health is Health.HEALTHY
    assert digest_of(running) == digest_of(rebuilt)


def test_a_checkpoint_is_the_state_and_the_rest_goes_on_from_there() -> None:
    restored = decode_state(encode_state(replay(STORY[:2])))
    assert restored.position == STORY[1].position
    assert restored.drain_touched() == ("n1",)
    assert facts_of(replay(STORY[2:], onto=restored)) == facts_of(replay(STORY))


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(InvalidInput, match="checkpoint"):
        decode_state(b"\x81\xa1a\x01"[:-1])
    with pytest.raises(InvalidInput, match="nodes"):
        decode_state(msgspec.msgpack.encode({"nodes": 7}))


def test_the_digest_tells_states_apart_and_not_the_order_they_grew_in() -> None:
    a, b = (a_node_registered(a_device("GPU-a")), "n1"), (a_node_registered(a_device("GPU-b")), "n2")
    forth, back = replay(records_of([a, b])), replay(records_of([b, a]))
    assert digest_of(forth) == digest_of(back)
    assert digest_of(forth) != digest_of(replay(records_of([a])))


def test_the_schema_follows_the_fields_and_not_the_prose() -> None:
    class Inner(msgspec.Struct):
        """Some words."""

        x: int = 0

    class Outer(msgspec.Struct):
        inner: dict[str, Inner]

    first = schema_of(Outer)
    Inner.__doc__ = "Other words."
    assert schema_of(Outer) == first

    class Changed(msgspec.Struct):
        inner: dict[str, int]

    assert schema_of(Changed) != first
    assert schema_of(type(facts_of(new_cluster()))) == SCHEMA


def test_a_new_state_stands_at_the_start() -> None:
    assert new_cluster().position == START
    assert snapshot(new_cluster()).g == 0
