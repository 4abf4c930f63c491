"""How far may the log be trimmed?

    floor = the oldest of: what is archived, every fold's checkpoints, what each consumer group needs, the time to keep

Everything below the floor may go, the floor's own entry stays. A consumer group that has not moved for a day is not waited for
any longer: its readers are told in the log. A fold's checkpoint is never passed over, unless it belongs to such a group (it has
its name) or to another life of the store: a process that boots from it would find no history to go on from.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hami.domain.units import EpochMs
from hami.events.envelope import Position, entry_key
from hami.events.retention import GroupProgress, Kept

PATIENCE_MS: Final = 24 * 60 * 60 * 1000
"""How long a consumer group may stand still before the log is trimmed without it."""

_GROUP: Final = "group/"


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A group, and since when it needs the same entry although there are newer ones."""

    name: str
    needs: str
    since_ms: EpochMs

    def stale(self, now: EpochMs) -> bool:
        return now - self.since_ms >= PATIENCE_MS


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """Something that entries from `entry` on are kept for, in words that a metric can carry."""

    what: str
    entry: str


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """Entries below `pin.entry` may go. `cut_off`: groups that wanted some of them."""

    pin: Pin
    cut_off: tuple[Watched, ...] = ()


def watched(
    groups: Sequence[GroupProgress], notes: Mapping[str, str], *, head: Position, now: EpochMs
) -> tuple[tuple[Watched, ...], dict[str, str]]:
    """Each group with the time it last moved, and what to note down so that the next look, by any process, knows it too."""
    found, changes = [], {}
    for group in groups:
        needs, key = group.needs, _GROUP + group.name
        noted, _, since = notes.get(key, "").partition(" ")
        caught_up = not group.pending and entry_key(needs) >= entry_key(head.entry)
        if noted != needs or not since.isdecimal() or caught_up:
            since = str(int(now))
            changes[key] = f"{needs} {since}"
        found.append(Watched(name=group.name, needs=needs, since_ms=EpochMs(int(since))))
    names = {_GROUP + each.name for each in groups}
    gone = [key for key in notes if key.startswith(_GROUP) and key not in names]
    return tuple(found), changes | dict.fromkeys(gone, "")


def floor_of(
    *,
    archived: Position,
    kept: Sequence[Kept],
    groups: Sequence[Watched],
    keep_ms: int,
    incarnation: str,
    needed: str,
    now: EpochMs,
) -> Floor:
    """`needed` is the fold without whose checkpoint nothing may be trimmed at all: its processes would begin at g 1."""
    stale = {each.name for each in groups if each.stale(now)}
    usable = [each for each in kept if each.incarnation in {incarnation, ""} and each.fold not in stale]
    pins = [
        Pin(what="archived", entry=archived.entry),
        Pin(what="keep_hours", entry=f"{max(0, now - keep_ms)}-0"),
        *(Pin(what=f"checkpoint {each.fold}", entry=each.position.entry) for each in usable),
        *(Pin(what=f"group {each.name}", entry=each.needs) for each in groups if each.name not in stale),
    ]
    if all(each.fold != needed for each in usable):
        pins.append(Pin(what=f"no checkpoint {needed}", entry="0-0"))
    pin = min(pins, key=lambda each: entry_key(each.entry))
    wanted = [each for each in groups if each.name in stale and entry_key(each.needs) < entry_key(pin.entry)]
    return Floor(pin=pin, cut_off=tuple(wanted))
