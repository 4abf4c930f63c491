"""Does the state that a process runs on equal what the log says? Rebuild it and compare."""

import msgspec

from hami.events.envelope import Position
from hami.events.log import Checkpoints, Log
from hami.projections.boot import FOLD, newest_state
from hami.projections.checkpoint import digest_of
from hami.projections.folds.cluster import new_cluster
from hami.projections.folds.state import ClusterState
from hami.projections.timetravel import replay


class StateDigest(msgspec.Struct, frozen=True):
    """What two processes compare: the same position must give the same digest."""

    position: Position
    digest: str


class Drift(msgspec.Struct, frozen=True):
    """A running state against a rebuilt one at the same position."""

    running: StateDigest
    rebuilt: StateDigest

    @property
    def none(self) -> bool:
        return self.running == self.rebuilt


def state_digest(state: ClusterState) -> StateDigest:
    return StateDigest(state.position, digest_of(state))


async def measure(log: Log, running: ClusterState) -> Drift:
    """Rebuild from the very beginning of the log. `running` may go on meanwhile: what counts is where it stands now."""
    now = state_digest(running)
    return Drift(now, state_digest(await replay(log, new_cluster(), now.position.g)))


async def measure_from_checkpoint(
    log: Log, checkpoints: Checkpoints, running: ClusterState, *, incarnation: str, fold: str = FOLD
) -> Drift:
    """Rebuild from the newest checkpoint: cheap enough to do all the time, blind to what was wrong before it."""
    now = state_digest(running)
    base = await newest_state(log, checkpoints, incarnation=incarnation, fold=fold, not_after=now.position.g)
    return Drift(now, state_digest(await replay(log, base, now.position.g)))
