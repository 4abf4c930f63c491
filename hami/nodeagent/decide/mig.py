"""decide for MIG: the instances that a node has, those that its reservations call for -> what to make, tell and destroy. Pure.

An instance belongs to one reservation. It is never handed on: what stays of an ended reservation is destroyed, and the next
one gets an instance of its own, made at the profile and the place that the control plane chose.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from hami.domain.allocation import Reservation, shares_of
from hami.domain.device import MigPlacement, MigSlice
from hami.domain.units import MiB

INSTANCE: Final = "MIG-"
"""What the names of instances begin with."""


class Place(NamedTuple):
    """Where an instance lies. Two instances at one place cannot exist at the same time."""

    card: str
    profile: str
    start: int
    size: int


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance as the library shows it, with one of its compute instances; without one it cannot be used yet.

    `whole`: the compute instance has the GPU instance to itself. `busy`: a process runs in it, or nobody can tell.
    """

    card: str
    profile: str
    placement: MigPlacement
    gpu_instance: int
    compute_instance: int | None = None
    uuid: str = ""
    memory: MiB = MiB(0)
    caps: tuple[str, ...] = ()
    """Device nodes that open it, beside the card's own."""
    whole: bool = True
    busy: bool = False

    @property
    def place(self) -> Place:
        return Place(self.card, self.profile, self.placement.start, self.placement.size)

    @property
    def slice(self) -> MigSlice:
        return MigSlice(self.profile, self.placement, self.uuid)


class Failed(msgspec.Struct, frozen=True):
    """A step on a card that did not succeed, in the library's words."""

    why: str


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of an instance of ours, from before it is made until it is gone."""

    card: str
    slice: MigSlice
    reservation: str
    told: bool = False
    """Whether the cluster has heard of it for certain."""

    @property
    def place(self) -> Place:
        return place_of(self.card, self.slice)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that a bound reservation waits for."""

    card: str
    slice: MigSlice
    reservation: str

    @property
    def place(self) -> Place:
        return place_of(self.card, self.slice)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """In this order: destroy, then complete or make, then tell."""

    destroy: tuple[Instance, ...] = ()
    make: tuple[Wanted, ...] = ()
    complete: tuple[tuple[Wanted, Instance], ...] = ()
    tell: tuple[tuple[Wanted, Instance], ...] = ()
    foreign: tuple[Instance, ...] = ()
    """Nobody's, and in use: left alone."""


def caps_of(minors: str, card_minor: str, gpu_instance: int, compute_instance: int) -> tuple[str, ...]:
    """The nodes that the kernel's table of MIG minors (`/proc/driver/nvidia-caps/mig-minors`) names for an instance."""
    known = dict(line.split() for line in minors.splitlines() if len(line.split()) == 2)
    base = f"gpu{card_minor}/gi{gpu_instance}"
    numbers = (known.get(f"{base}/access"), known.get(f"{base}/ci{compute_instance}/access"))
    return tuple(f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers if number)


def place_of(card: str, piece: MigSlice) -> Place:
    return Place(card, piece.profile, piece.placement.start, piece.placement.size)


def wanted(bound: Sequence[Reservation], owned: Mapping[Place, Owned], is_live: Callable[[str], bool]) -> tuple[Wanted, ...]:
    """Each place once: containers that take turns (init and app) may share one.

    A reservation that the log has told long ago may be remembered by its instance alone.
    """
    found = {
        place_of(share.uuid, share.mig): Wanted(card=share.uuid, slice=share.mig, reservation=reservation.id)
        for reservation in bound
        for share in shares_of(reservation.containers)
        if share.mig is not None
    }
    for place, mine in owned.items():
        if place not in found and is_live(mine.reservation):
            found[place] = Wanted(card=mine.card, slice=mine.slice, reservation=mine.reservation)
    return tuple(found.values())


def plan(
    there: Sequence[Instance], asked: Sequence[Wanted], owned: Mapping[Place, Owned], is_told: Callable[[Place], bool]
) -> Plan:
    """`there` are the instances of cards that this node's reservations may cut, `owned` what is remembered by place.

    An instance whose place the library would not tell is nobody's to touch.
    """
    for_whom = {each.place: each for each in asked}
    destroy, foreign, kept = [], [], dict[Place, Instance]()
    for instance in there:
        if not instance.placement.size:
            foreign.append(instance)
            continue
        wish, mine = for_whom.get(instance.place), owned.get(instance.place)
        if wish is not None and (mine is None or mine.reservation == wish.reservation):
            kept[instance.place] = instance
        elif mine is None and instance.busy:
            foreign.append(instance)
        else:
            destroy.append(instance)
    usable = [(each, kept[each.place]) for each in asked if each.place in kept]
    return Plan(
        destroy=tuple(destroy),
        foreign=tuple(foreign),
        make=tuple(each for each in asked if each.place not in kept),
        complete=tuple((each, instance) for each, instance in usable if not instance.uuid),
        tell=tuple(
            (each, instance)
            for each, instance in usable
            if instance.uuid and not _settled(instance, owned.get(each.place), told=is_told(each.place))
        ),
    )


def _settled(instance: Instance, mine: Owned | None, *, told: bool) -> bool:
    """Told of under the very name that it has now."""
    return told and mine is not None and mine.slice.uuid == instance.uuid
