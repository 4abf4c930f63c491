"""A whole scheduler: filter and bind over HTTP, what lands in the log, and what lands on the pod."""

from hami.events.catalog.allocation import AllocationBound, AllocationReserved
from tests.support.scheduler import World


async def test_filter_reserves_and_bind_writes_the_binding_with_its_annotations(world: World) -> None:
    await world.add_node("n1")
    pod = await world.add_pod("p1")
    async with world.scheduler() as caller:
        found = await caller.filter(pod, ["n1", "absent"])
        assert found["NodeNames"] == ["n1"]
        assert found["FailedNodes"] == {"absent": "node unregistered"}
        assert found["Error"] == ""
        assert await caller.bind(pod, "n1") == ""
    bound = world.pod_of("p1")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"]["container.hami.io/main.visible-devices"] == "GPU-n1"
    reserved = await world.events(AllocationReserved)
    assert [each.reservation.node for each in reserved] == ["n1"]
    assert [each.reservation for each in await world.events(AllocationBound)] == [reserved[0].reservation.id]
