"""Where to start reading: the newest checkpoint that still holds, else an older one, else the beginning of the log."""

from typing import Final

from hami.domain.errors import HistoryTrimmed, InvalidInput
from hami.events.envelope import START, Position
from hami.events.log import Checkpoints, Log
from hami.projections.checkpoint import SCHEMA, decode_state
from hami.projections.folds.cluster import new_cluster
from hami.projections.folds.state import ClusterState

FOLD: Final = "cluster"
"""Name of the cluster fold's checkpoints."""


async def stands(log: Log, position: Position, previous: Position) -> bool:
    """Does the log still hold `position` where it was read? `previous` is the position before it.

    After a failover that lost entries, another entry stands in its place, or none. An entry that was trimmed still stands:
    what follows it carries the next g.
    """
    if position == START:
        return True
    try:
        after = await log.read(previous, limit=1)
    except HistoryTrimmed as trimmed:
        return trimmed.g == position.g + 1
    if not after:
        return await log.head() == position
    first = after[0].position
    return first == position or first.g == position.g + 1


async def newest_state(
    log: Log, checkpoints: Checkpoints, *, incarnation: str, fold: str = FOLD, not_after: int | None = None
) -> ClusterState:
    """The state to replay from. A checkpoint counts if incarnation and schema match, it can be read, and its entry stands."""
    for position, saved_incarnation, schema, raw in await checkpoints.load(fold):
        if saved_incarnation != incarnation or schema != SCHEMA:
            continue
        if not_after is not None and position.g > not_after:
            continue
        try:
            state = decode_state(raw)
        except InvalidInput:
            continue
        if state.position == position and await stands(log, position, state.previous):
            return state
    return new_cluster()
