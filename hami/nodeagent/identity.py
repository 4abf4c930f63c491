"""Which Node object this node is: its uid tells a node that was deleted and made again from the one before."""

from collections.abc import Callable

from hami.events.backoff import Backoff
from hami.kube.errors import ApiError
from hami.nodeagent.announce import NodeObject
from hami.telemetry import get_logger

log = get_logger("identity")


async def learn_uid(name: str, api: NodeObject, tell: Callable[[str], None], *, most_s: float = 600.0) -> None:
    """Asks until the API answers; nothing waits for it. An agent that may not read its node registers without the uid."""
    backoff, said = Backoff(least_s=min(1.0, most_s), most_s=most_s), ""
    while True:
        try:
            node = await api.get_node(name)
            why = f"there is no node {name}" if node is None else ""
        except ApiError as error:
            node, why = None, str(error)
        if node is not None:
            tell(node.metadata.uid)
            return
        if why != said:
            log.warning("uid of the node is not known: a node made again under this name cannot be told apart", why=why)
        said = why
        await backoff.wait()
