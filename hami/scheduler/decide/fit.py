"""Exactly one node: does the pod fit, and on which cards. This is the judge; planes only save its time.

Containers in order: an init container runs beside the sidecars started before it, sidecars and apps add up. Cards are sorted
by policy and walked from the end; the first check a card fails is its reason.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter

import msgspec

from hami.domain.allocation import ContainerShares, DeviceShare
from hami.domain.cluster import NodeState
from hami.domain.reasons import Reason
from hami.domain.request import ContainerKind, ContainerRequest, DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB
from hami.scheduler.decide import mig
from hami.scheduler.decide.cards import Card, Pick, Question, Rules, Walk
from hami.scheduler.decide.checks import CHECKS, SIZES
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.quota import Budget
from hami.scheduler.decide.selects import SELECTS
from hami.vendors.constraints import Wishes, wants_numa, wishes_of
from hami.vendors.vendor import Check, Vendor


class Fit(msgspec.Struct, frozen=True):
    """The pod fits; these cards would be its."""

    containers: tuple[ContainerShares, ...]


class Misfit(msgspec.Struct, frozen=True):
    """The pod does not fit; the text is what users see."""

    reason: str


def question(
    request: PodRequest, policy: SchedulingPolicy, vendors: Sequence[Vendor], budgets: Mapping[str, Budget]
) -> Question:
    words = {asked.vendor for container in request.containers for asked in container.requests}
    own = {each.word: each for each in vendors if each.word in words}
    wishes = {word: wishes_of(request.annotations, each) for word, each in own.items()}
    limited = {word: each for word, each in budgets.items() if each.limited and word in own}
    return Question(
        request=request,
        policy=policy,
        vendors=own,
        rules={
            word: _rules(each, wishes[word], request.annotations, mutex=policy.mutex, limited=word in limited)
            for word, each in own.items()
        },
        wishes=wishes,
        budgets=limited,
        mutex=policy.mutex,
        topology=policy.topology_aware,
        numa_bind=any(wants_numa(request.annotations, each) for each in vendors),
    )


def _rules(vendor: Vendor, wishes: Wishes, annotations: Mapping[str, str], *, mutex: bool, limited: bool) -> Rules:
    """Checks that no card can fail for this pod are left out."""
    met = set() if mutex else {Check.MUTEX, Check.BOARD_MUTEX}
    if vendor.spares is not None:
        met |= vendor.spares(annotations)
    if not limited:
        met.add(Check.QUOTA)
    if not wishes.numa_bind:
        met.add(Check.NUMA)
    if not wishes.about_types:
        met.add(Check.TYPE)
    if not wishes.about_uuids:
        met.add(Check.UUID)
    checks = tuple(CHECKS[each] for each in vendor.checks if each not in met)
    return Rules(size=SIZES[vendor.size], checks=checks, select=SELECTS[vendor.select])


def fit_node(node: NodeState, ask: Question) -> Fit | Misfit:
    steady = [Card(each) for each in node.devices]
    decided: list[ContainerShares] = []
    for container in ask.request.containers:
        shares: tuple[DeviceShare, ...] = ()
        if container.requests:
            cards = steady if container.kind is not ContainerKind.INIT else [card.copy() for card in steady]
            found = _fit_container(cards, container, ask, decided)
            if isinstance(found, Misfit):
                return found
            shares = found
        decided.append(ContainerShares(name=container.name, kind=container.kind, shares=shares))
    return Fit(tuple(decided))


def _fit_container(
    cards: list[Card], container: ContainerRequest, ask: Question, decided: Sequence[ContainerShares]
) -> tuple[DeviceShare, ...] | Misfit:
    for card in cards:
        card.rate(container.requests, ask.policy.weights)
    shares: tuple[DeviceShare, ...] = ()
    for asked in container.requests:
        sort_cards(cards, ask.policy.sort_keys(numa_bind=ask.numa_bind))
        own = [card for card in cards if card.device.vendor == asked.vendor]
        if asked.count > len(own) and not _may_cut(own, ask, asked):
            return Misfit(Reason.NODE_INSUFFICIENT_DEVICE.value)
        walk = Walk(asked, ask, [*decided, ContainerShares(name=container.name, kind=container.kind, shares=shares)], own)
        picks = walk.rules.select(walk)
        if picks is None:
            return Misfit(walk.text)
        for pick in picks:
            share = _share_of(pick, asked, walk.vendor, ask.request.annotations)
            pick.card.give(share, pick.slots)
            shares = (*shares, share)
    return shares


def sort_cards(cards: list[Card], keys: Sequence[str]) -> None:
    """Stable, key by key from the last to the first."""
    for key in reversed(keys):
        cards.sort(key=attrgetter(key.rstrip("-")), reverse=False) if key[-1] != "-" else _sort_down(cards, key[:-1])


def _sort_down(cards: list[Card], name: str) -> None:
    read = attrgetter(name)
    cards.sort(key=lambda card: -read(card))


def _may_cut(cards: Sequence[Card], ask: Question, asked: DeviceRequest) -> bool:
    """One MIG card can serve several units of one container."""
    cuts = Check.MIG in ask.vendors[asked.vendor].checks and ask.wishes[asked.vendor].mig_welcome
    return cuts and any(card.device.mode == "mig" for card in cards)


def model_of(vendor: Vendor, pick: Pick) -> str:
    return pick.card.device.model if vendor.model_in_annotation else vendor.word


def _share_of(pick: Pick, asked: DeviceRequest, vendor: Vendor, annotations: Mapping[str, str]) -> DeviceShare:
    """MIG is planned anew, one unit after another: a topology choice may have passed over units planned before."""
    device = pick.card.device
    memory, cores, piece = pick.memory, pick.cores, None
    if pick.planned is not None:
        planned = mig.plan(device.mig_profiles, pick.memory, pick.card.slices) or pick.planned
        memory, cores, piece = planned[0].memory, planned[0].cores, planned[1]
    return DeviceShare(
        vendor=asked.vendor,
        uuid=device.uuid,
        memory=MiB(memory),
        cores=CorePercent(cores),
        model=model_of(vendor, pick),
        index=device.index,
        mig=piece,
        note="" if vendor.note is None else vendor.note(annotations, cores),
    )
