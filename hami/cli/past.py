"""The cluster at a place in the log: the scheduler's own fold, from the newest checkpoint before that place."""

from hami.cli.places import records_until
from hami.domain.cluster import ClusterSnapshot
from hami.events.envelope import Position
from hami.events.store import Store
from hami.projections.boot import newest_state
from hami.projections.folds.cluster import apply, snapshot
from hami.projections.view import FOLD


async def snapshot_at(store: Store, incarnation: str, position: Position) -> ClusterSnapshot:
    """The state after the event at `position`. Raises LogGap when events before it are missing."""
    state = await newest_state(store.log, store.checkpoints, incarnation=incarnation, fold=FOLD, not_after=position.g)
    async for record in records_until(store.log, state.position, position):
        apply(state, record)
    return snapshot(state)
