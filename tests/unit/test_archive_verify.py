"""`Checker` names the first thing that is wrong with a history, and nothing about one that is whole."""

from collections.abc import Callable, Sequence

import pytest

from hami.domain.units import EpochMs
from hami.events.archive.verify import Checker
from hami.events.codec import Place, encode_envelope, encode_place, seal
from hami.events.envelope import Envelope
from hami.events.retention import RawEntry
from tests.support.drafts import lost


def written(producer: str = "p", *, epoch: int = 1, count: int = 3, chain: str = "") -> list[Envelope]:
    made = []
    for seq in range(1, count + 1):
        envelope = seal(
            lost(reason=f"{producer} {seq}"), producer=producer, epoch=epoch, seq=seq, occurred_ms=EpochMs(1), chain=chain
        )
        chain = envelope.chain
        made.append(envelope)
    return made


def raw(g: int, envelope: Envelope | bytes, *, ms: int = 0) -> RawEntry:
    body = envelope if isinstance(envelope, bytes) else encode_envelope(envelope)
    return RawEntry(f"{ms or 1000 + g}-0", body, encode_place(Place(g, {})))


def log_of(*envelopes: Envelope, first: int = 1) -> list[RawEntry]:
    return [raw(g, envelope) for g, envelope in enumerate(envelopes, start=first)]


def first_wrong(entries: Sequence[RawEntry]) -> str:
    checker = Checker()
    return next((wrong for wrong in map(checker.take, entries) if wrong), "")


def whole() -> list[RawEntry]:
    p, q = written("p"), written("q")
    return log_of(p[0], q[0], p[1], q[1], *written("p", epoch=4, count=2), q[2])


def test_a_whole_history_is_whole() -> None:
    checker = Checker()
    assert [checker.take(each) for each in whole()] == [""] * 7
    found = checker.result()
    assert (found.first_g, found.last_g, found.entries, found.producers, found.wrong) == (1, 7, 7, 2, "")


def test_a_history_that_begins_late_is_taken_as_it_begins() -> None:
    assert first_wrong(whole()[2:]) == ""
    p = written("p", count=5)
    assert first_wrong(log_of(p[2], p[3], first=7)) == ""
    assert "p/1/5 follows p/1/3" in first_wrong(log_of(p[2], p[4], first=7))


@pytest.mark.parametrize("lost_at", [1, 2, 3, 5])
def test_an_entry_that_is_taken_out_is_missed(lost_at: int) -> None:
    entries = whole()
    del entries[lost_at]
    assert f"follows g {lost_at} " in first_wrong(entries)


def test_an_entry_taken_out_and_counted_over_is_missed_by_its_producer() -> None:
    p = written("p")
    assert "g 2 (1002-0): p/1/3 follows p/1/1: events of this producer are missing" in first_wrong(log_of(p[0], p[2]))
    assert "p/1/1 follows p/1/2" in first_wrong(log_of(p[0], p[1], p[0]))
    assert "p/2/2 follows p/1/3" in first_wrong(log_of(*p, written("p", epoch=2)[1]))
    assert "p/1/2 follows p/4/1" in first_wrong(log_of(p[0], written("p", epoch=4)[0], p[1]))
    assert "p/1/2 follows p/0/0" in first_wrong(log_of(p[1]))


def test_changed_content_breaks_the_chain_where_it_was_changed() -> None:
    def changed(envelope: bytes) -> bytes:
        return envelope.replace(b'"reason":"p 2"', b'"reason":"p 9"')

    p = written("p")
    entries = [raw(g, changed(encode_envelope(each))) for g, each in enumerate(p, start=1)]
    assert first_wrong(entries) == (
        "g 2 (1002-0): the chain value of p/1/2 does not fit: this event or one before it was changed"
    )


def test_a_changed_event_with_a_chain_value_of_its_own_shows_at_the_next() -> None:
    p = written("p")
    forged = seal(lost(reason="forged"), producer="p", epoch=1, seq=2, occurred_ms=EpochMs(1), chain=p[0].chain)
    assert "g 3 (1003-0): the chain value of p/1/3" in first_wrong(log_of(p[0], forged, p[2]))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda each: each._replace(envelope=b"{}"), "entry 1002-0, after g 1: envelope"),
        (lambda each: each._replace(place=b"no"), "entry 1002-0, after g 1: p"),
        (lambda each: each._replace(entry="1001-0"), "its id is not above that of g 1"),
    ],
    ids=["envelope", "place", "id"],
)
def test_what_cannot_be_is_named(spoil: Callable[[RawEntry], RawEntry], says: str) -> None:
    entries = whole()
    entries[1] = spoil(entries[1])
    assert says in first_wrong(entries)
