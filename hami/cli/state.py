"""`hami state`: the cluster as decisions see it, now or at any recorded moment."""

import click

from hami.cli.exits import NotFound
from hami.cli.output import print_json, print_table
from hami.cli.past import snapshot_at
from hami.cli.process import run_verb
from hami.cli.session import Session, Verb, archive_option, pass_session
from hami.cli.state_view import allocation_rows, as_json, device_rows, node_rows, quota_rows
from hami.cli.store import open_store
from hami.cli.when import parse_moment, shown
from hami.domain.cluster import ClusterSnapshot
from hami.events.envelope import Position


@click.command(cls=Verb)
@click.option("--at", default="now", show_default=True, metavar="TIME", help="RFC 3339, unix, -5m (before now), g:123.")
@click.option("--node", default="", metavar="NAME", help="Only this node.")
@archive_option
@pass_session
def command(session: Session, at: str, node: str) -> None:
    """Show nodes, devices with health and use, live allocations and quotas.

    The state is rebuilt from the log up to the moment; nothing is asked of Kubernetes.
    """
    run_verb(_state, session, at, node)


async def _state(session: Session, at: str, node: str) -> None:
    async with open_store(session) as (store, incarnation):
        moment = parse_moment(at, now=await store.log.now())
        position, snapshot = await snapshot_at(store, incarnation, moment)
    if node and node not in snapshot.nodes:
        known = ", ".join(sorted(snapshot.nodes)[:10]) or "none"
        raise NotFound(f"no node {node} is registered at g:{position.g}; there are: {known}")
    if session.json:
        print_json(as_json(snapshot, position, node=node))
    else:
        _print(snapshot, position, node)


def _print(snapshot: ClusterSnapshot, position: Position, node: str) -> None:
    when = f"recorded {shown(position.recorded_ms)}" if position.g else "the log is empty up to here"
    click.echo(f"state at g:{position.g}, {when}")
    print_table("nodes", ("NODE", "LIVE", "DELIVERY", "DEVICES", "NOTE"), node_rows(snapshot, node))
    header = ("NODE", "IDX", "DEVICE", "MODEL", "HEALTH", "SLOTS", "MEMORY MiB", "CORES %", "NOTE")
    print_table("devices", header, device_rows(snapshot, node))
    print_table(
        "allocations", ("POD", "PHASE", "NODE", "CONTAINER", "DEVICE", "MiB", "CORES %"), allocation_rows(snapshot, node)
    )
    if not node:
        print_table("quotas", ("NAMESPACE", "RESOURCE", "LIMIT", "SET BY"), quota_rows(snapshot))
