"""How far the log may be trimmed, and who is waited for."""

from collections.abc import Sequence

import pytest

from hami.archive.decide.floor import PATIENCE_MS, Floor, Watched, floor_of, watched
from hami.domain.units import EpochMs
from hami.events.envelope import START, Position
from hami.events.retention import GroupProgress, Kept

NOW = EpochMs(1_000_000_000)
DAYS = 24 * 3_600_000


def at(ms: int) -> Position:
    return Position(ms, f"{ms}-0")


def kept(ms: int, fold: str = "cluster", incarnation: str = "A") -> Kept:
    return Kept(fold=fold, position=at(ms), incarnation=incarnation)


def group(needs: int, *, since: int = NOW, name: str = "alerts") -> Watched:
    return Watched(name=name, needs=f"{needs}-0", since_ms=EpochMs(since))


def floor(
    *,
    archived: int = 900_000_000,
    kept_: Sequence[Kept] = (kept(800_000_000),),
    groups: Sequence[Watched] = (),
    keep_ms: int = 0,
) -> Floor:
    return floor_of(
        archived=at(archived),
        kept=kept_,
        groups=groups,
        keep_ms=keep_ms,
        incarnation="A",
        needed="cluster",
        now=NOW,
    )


@pytest.mark.parametrize(
    ("found", "what", "entry"),
    [
        (floor(), "checkpoint cluster", "800000000-0"),
        (floor(archived=700_000_000), "archived", "700000000-0"),
        (floor(archived=0), "archived", "0-0"),
        (floor(keep_ms=300_000_000), "keep_hours", "700000000-0"),
        (floor(keep_ms=10 * NOW), "keep_hours", "0-0"),
        (floor(groups=[group(500)]), "group alerts", "500-0"),
        (floor(groups=[group(900_000_001)]), "checkpoint cluster", "800000000-0"),
        (floor(kept_=[kept(800_000_000), kept(600)]), "checkpoint cluster", "600-0"),
        (floor(kept_=[kept(800_000_000), kept(600, "cost")]), "checkpoint cost", "600-0"),
    ],
)
def test_the_oldest_need_is_the_floor(found: Floor, what: str, entry: str) -> None:
    assert (found.pin.what, found.pin.entry, found.cut_off) == (what, entry, ())


def test_without_a_checkpoint_of_the_needed_fold_everything_stays() -> None:
    for none in ((), (kept(800_000_000, "cost"),), (kept(800_000_000, incarnation="B"),)):
        assert floor(kept_=none).pin.entry == "0-0"
        assert floor(kept_=none).pin.what == "no checkpoint cluster"


def test_a_checkpoint_of_another_life_is_no_need_and_an_unreadable_one_is() -> None:
    assert floor(kept_=[kept(800_000_000), kept(5, "cost", "B")]).pin.entry == "800000000-0"
    unreadable = Kept(fold="cost", position=START)
    assert floor(kept_=[kept(800_000_000), unreadable]).pin.entry == "0-0"


def test_a_group_that_stood_still_for_a_day_is_cut_off_and_named() -> None:
    still = group(500, since=NOW - PATIENCE_MS)
    slow = group(400_000_000, name="audit", since=NOW - PATIENCE_MS + 1)
    found = floor(groups=[still, slow])
    assert (found.pin.what, found.cut_off) == ("group audit", (still,))
    assert floor(groups=[group(NOW, since=0)]).cut_off == ()


def test_the_checkpoint_of_a_group_goes_with_it() -> None:
    saved = [kept(800_000_000), kept(500, "alerts")]
    assert floor(kept_=saved, groups=[group(500)]).pin.entry == "500-0"
    found = floor(kept_=saved, groups=[group(500, since=0)])
    assert (found.pin.what, [each.name for each in found.cut_off]) == ("checkpoint cluster", ["alerts"])


# Who has moved


def progress(last: int, pending: str = "", name: str = "alerts") -> GroupProgress:
    return GroupProgress(name=name, last=f"{last}-0", pending=pending)


def test_a_group_is_remembered_by_where_it_stood_and_since_when() -> None:
    (first,), notes = watched([progress(5)], {}, head=at(9), now=NOW)
    assert first == Watched(name="alerts", needs="5-0", since_ms=NOW)
    later = EpochMs(NOW + 7)
    (second,), changes = watched([progress(5)], notes, head=at(9), now=later)
    assert (second.since_ms, changes) == (NOW, {})
    (third,), changes = watched([progress(6)], notes, head=at(9), now=later)
    assert (third.since_ms, third.needs) == (later, "6-0")
    assert changes == {"group/alerts": f"6-0 {later}"}


def test_the_oldest_pending_entry_is_what_a_group_needs() -> None:
    (found,), _ = watched([progress(9, pending="3-1")], {}, head=at(9), now=NOW)
    assert found.needs == "3-1"


def test_a_group_with_nothing_to_do_does_not_stand_still() -> None:
    _, notes = watched([progress(9)], {}, head=at(9), now=NOW)
    later = EpochMs(NOW + 2 * DAYS)
    (found,), _ = watched([progress(9)], notes, head=at(9), now=later)
    assert not found.stale(later)
    (pending,), _ = watched([progress(9, pending="9-0")], notes, head=at(9), now=later)
    assert pending.stale(later)


def test_a_group_that_is_gone_is_forgotten_and_a_broken_note_begins_anew() -> None:
    _, changes = watched([], {"group/old": "5-0 1", "forgotten": "1-0"}, head=at(9), now=NOW)
    assert changes == {"group/old": ""}
    (found,), _ = watched([progress(5)], {"group/alerts": "5-0 soon"}, head=at(9), now=NOW)
    assert found.since_ms == NOW
