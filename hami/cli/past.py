"""The cluster at a moment, and the place in the log that the moment means."""

from hami.cli.places import position_of
from hami.cli.when import Moment
from hami.domain.cluster import ClusterSnapshot
from hami.events.envelope import Position
from hami.events.store import Store
from hami.projections.folds.cluster import snapshot
from hami.projections.timetravel import state_at


async def snapshot_at(store: Store, incarnation: str, moment: Moment) -> tuple[Position, ClusterSnapshot]:
    """The state after the last event of the moment. Raises NotFound beyond the log, HistoryTrimmed before it."""
    position = await position_of(store.log, moment)
    state = await state_at(store.log, store.checkpoints, incarnation=incarnation, g=position.g)
    return position, snapshot(state)
