"""What is made, told and destroyed of MIG instances, given what is there, who wants what, and what is remembered."""

from collections.abc import Sequence

import msgspec

from hami.domain.allocation import ContainerShares, DeviceShare, Reservation
from hami.domain.device import MigPlacement, MigSlice
from hami.domain.request import ContainerKind
from hami.domain.units import CorePercent, MiB
from hami.nodeagent.decide.mig import Instance, Owned, Plan, Wanted, caps_of, plan, wanted
from tests.support.agents import reservation

CARD = "GPU-a"
PIECE = MigSlice("1g.10gb", MigPlacement(6, 1))
WISH = Wanted(card=CARD, slice=PIECE, reservation="r-1")
MADE = Instance(card=CARD, profile="1g.10gb", placement=MigPlacement(6, 1), gpu_instance=7, compute_instance=0, uuid="MIG-1")
BARE = msgspec.structs.replace(MADE, compute_instance=None, uuid="")


def owned(reservation_id: str = "r-1", uuid: str = "MIG-1", *, told: bool = False) -> Owned:
    return Owned(card=CARD, slice=MigSlice(PIECE.profile, PIECE.placement, uuid), reservation=reservation_id, told=told)


def planned(there: Sequence[Instance], asked: Sequence[Wanted], *mine: Owned) -> Plan:
    return plan(there, asked, {each.place: each for each in mine}, lambda _: any(each.told for each in mine))


def test_what_is_not_there_is_made() -> None:
    assert planned([], [WISH]) == Plan(make=(WISH,))


def test_what_is_half_there_is_completed_whoever_began_it() -> None:
    assert planned([BARE], [WISH], owned(uuid="")) == Plan(complete=((WISH, BARE),))
    assert planned([BARE], [WISH]) == Plan(complete=((WISH, BARE),))


def test_what_is_there_is_told_until_the_log_has_it_under_its_name() -> None:
    assert planned([MADE], [WISH], owned()) == Plan(tell=((WISH, MADE),))
    assert planned([MADE], [WISH], owned(told=True)) == Plan()
    assert planned([MADE], [WISH], owned(uuid="MIG-0", told=True)) == Plan(tell=((WISH, MADE),))


def test_nobodys_instance_goes() -> None:
    assert planned([MADE], [], owned("r-0", told=True)) == Plan(destroy=(MADE,))
    assert planned([BARE], []) == Plan(destroy=(BARE,))


def test_an_instance_is_never_handed_on_to_the_next_reservation() -> None:
    assert planned([MADE], [WISH], owned("r-0", told=True)) == Plan(destroy=(MADE,), make=(WISH,))


def test_somebody_elses_instance_in_use_is_left_alone_ours_is_tried() -> None:
    busy = msgspec.structs.replace(MADE, busy=True)
    assert planned([busy], []) == Plan(foreign=(busy,))
    assert planned([busy], [], owned("r-0")) == Plan(destroy=(busy,))


def test_an_instance_whose_place_is_not_told_is_not_touched() -> None:
    unknown = msgspec.structs.replace(MADE, placement=MigPlacement(0, 0))
    assert planned([unknown], []) == Plan(foreign=(unknown,))
    assert planned([unknown], [], owned()) == Plan(foreign=(unknown,))


def test_the_same_place_of_another_card_is_another_place() -> None:
    other = msgspec.structs.replace(MADE, card="GPU-b")
    assert planned([other], [WISH], owned(uuid="")) == Plan(destroy=(other,), make=(WISH,))


def cutting(*containers: tuple[str, MigSlice | None]) -> Reservation:
    made = tuple(
        ContainerShares(
            name=name,
            kind=ContainerKind.APP,
            shares=(DeviceShare(vendor="NVIDIA", uuid=CARD, memory=MiB(1), cores=CorePercent(1), mig=piece),),
        )
        for name, piece in containers
    )
    return msgspec.structs.replace(reservation("u-1", [CARD]), containers=made)


def test_each_place_of_a_reservation_is_wanted_once() -> None:
    found = wanted([cutting(("init", PIECE), ("main", PIECE), ("plain", None))], {}, lambda _: False)
    assert found == (WISH,)


def test_a_reservation_older_than_the_feed_is_known_by_its_instance() -> None:
    mine = owned("r-old", told=True)
    known = Wanted(card=CARD, slice=mine.slice, reservation="r-old")
    assert wanted([], {mine.place: mine}, lambda name: name == "r-old") == (known,)
    assert wanted([], {mine.place: mine}, lambda _: False) == ()


def test_the_nodes_that_open_an_instance_come_from_the_kernels_table() -> None:
    table = "config 1\nmonitor 2\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\ngpu1/gi7/access 201\n"
    assert caps_of(table, "0", 7, 0) == ("/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67")
    assert caps_of(table, "2", 7, 0) == ()
    assert caps_of("", "0", 7, 0) == ()
