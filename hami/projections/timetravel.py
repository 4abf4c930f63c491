"""The cluster as it was: at a place in the log, or at a time of the store's clock."""

from hami.domain.units import EpochMs
from hami.events.log import Checkpoints, Log
from hami.projections.boot import FOLD, newest_state
from hami.projections.folds.cluster import apply
from hami.projections.folds.state import ClusterState


async def state_at(
    log: Log,
    checkpoints: Checkpoints,
    *,
    incarnation: str,
    g: int | None = None,
    time_ms: EpochMs | None = None,
    fold: str = FOLD,
) -> ClusterState:
    """The state right after record `g`, or after the last one written at or before `time_ms`; the head when neither is given.

    Beyond the head it is the state at the head. Raises HistoryTrimmed where the log no longer reaches back that far.
    """
    until = await _last_of(log, g, time_ms)
    state = await newest_state(log, checkpoints, incarnation=incarnation, fold=fold, not_after=until)
    return await replay(log, state, until)


async def replay(log: Log, state: ClusterState, until: int) -> ClusterState:
    """Apply what follows `state` up to and including g = `until`."""
    while state.position.g < until:
        batch = await log.read(state.position)
        if not batch:
            break
        for record in batch:
            if record.position.g > until:
                break
            apply(state, record)
    return state


async def _last_of(log: Log, g: int | None, time_ms: EpochMs | None) -> int:
    if g is not None:
        return g
    if time_ms is None:
        return (await log.head()).g
    return (await log.at_or_before(time_ms)).g
