"""decide for preferred allocation: of the ids that are free, those that lie on the wanted cards. Pure."""

from collections.abc import Sequence


def card_of(device_id: str) -> str:
    """The card behind a kubelet device id: `<uuid>-<i>` or `<uuid>::<replica>`; anything else is the card itself."""
    base = device_id.partition("::")[0]
    head, _, tail = base.rpartition("-")
    return head if tail.isdecimal() and base.count("-") == 6 else base


def preferred(available: Sequence[str], must_include: Sequence[str], size: int, wanted: Sequence[str]) -> tuple[str, ...]:
    """One id for every wanted card, those that must be included first; empty when that cannot be had (then anything goes)."""
    if size <= 0 or len(wanted) != size:
        return ()
    open_cards = list(wanted)
    chosen: list[str] = []
    for device_id in must_include:
        if card_of(device_id) in open_cards:
            open_cards.remove(card_of(device_id))
            chosen.append(device_id)
    for card in list(open_cards):
        found = next((each for each in available if card_of(each) == card and each not in chosen), None)
        if found is None:
            return ()
        chosen.append(found)
    return tuple(chosen) if len(chosen) == size else ()
