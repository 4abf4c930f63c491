"""Where hami's answer to an Ascend case may differ from the recorded one."""

from collections.abc import Callable, Mapping, Sequence

from hami.domain.cluster import NodeState
from hami.domain.request import PodRequest

Rows = Mapping[str, Sequence[Sequence[tuple[str, str, int, int]]]]
_STABLE_UP_TO = 12


def explained(
    request: PodRequest, differing: Mapping[str, NodeState], ours: Mapping[str, Rows], theirs: Mapping[str, Sequence[Rows]]
) -> str:
    """The entry of docs/differences.md that explains every one of these nodes; empty where none does."""
    words = {asked.vendor for container in request.containers for asked in container.requests}

    def others(name: str) -> bool:
        """HAMi takes another chip's cards for the asked one's: its word is the beginning of theirs."""
        devices = [each.device for each in differing[name].devices]
        return any(word != device.vendor and word in device.model for word in words for device in devices)

    def crowded(name: str) -> bool:
        """So many cards that HAMi's sort is not stable; the same were taken, in another order."""
        many = len(differing[name].devices) > _STABLE_UP_TO
        return many and any(_sorted(ours[name]) == _sorted(each) for each in theirs[name])

    return _first(differing, {"V20.2": others, "sort": crowded})


def _first(names: Mapping[str, NodeState], reasons: Mapping[str, Callable[[str], bool]]) -> str:
    return next((entry for entry, holds in reasons.items() if names and all(map(holds, names))), "")


def _sorted(rows: Rows) -> dict[str, list[list[tuple[str, str, int, int]]]]:
    return {word: [sorted(each) for each in containers] for word, containers in rows.items()}
