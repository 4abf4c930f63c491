"""Handshakes: what the log knows of a node beside what the node says."""

from hami.domain.device import Health
from hami.domain.digest import device_set_digest
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.handshake import DIGEST, HandshakeReported, HandshakeRequested
from tests.support.builders import a_device
from tests.support.scheduler import World

A, B = a_device("GPU-a"), a_device("GPU-b", index=1)


async def answer(world: World, asked: HandshakeRequested, digest: str, health: dict[str, Health]) -> None:
    report = HandshakeReported(nonce=asked.nonce, epoch=1, digest=digest, vendor="NVIDIA", health=health)
    await world.write(report, node_name="n1", subject="n1")


async def test_a_node_that_has_other_devices_is_asked_to_register_again_once(world: World) -> None:
    await world.add_node("n1", A)
    async with world.scheduler() as caller:
        [first] = await world.seen(HandshakeRequested)
        await answer(world, first, device_set_digest([A, B]), {})
        _, second = await world.seen(HandshakeRequested, 2)
        assert (second.why, second.devices) == (DIGEST, ())
        await answer(world, second, "still another", {})
        await world.settled(caller)
        await world.add_node("n2")
        await world.settled(caller)
        assert len(await world.events(HandshakeRequested)) == 2


async def test_health_that_the_log_has_differently_is_asked_for_by_card(world: World) -> None:
    await world.add_node("n1", A, B)
    stale = DeviceHealthChanged(device="GPU-b", was=Health.HEALTHY, now=Health.UNHEALTHY, reason="XID 79")
    await world.write(stale, node_name="n1", subject="GPU-b")
    async with world.scheduler() as caller:
        [first] = await world.seen(HandshakeRequested)
        await answer(world, first, device_set_digest([A, B]), {})
        _, second = await world.seen(HandshakeRequested, 2)
        assert (second.why, second.devices) == (DIGEST, ("GPU-b",))
        back = DeviceHealthChanged(device="GPU-b", was=Health.UNKNOWN, now=Health.HEALTHY, reason="")
        await world.write(back, node_name="n1", subject="GPU-b")
        await answer(world, second, device_set_digest([A, B]), {})
        await world.settled(caller)
        assert len(await world.events(HandshakeRequested)) == 2


async def test_an_older_agent_that_says_nothing_of_health_is_left_alone(world: World) -> None:
    await world.add_node("n1", A)
    sick = DeviceHealthChanged(device="GPU-a", was=Health.HEALTHY, now=Health.UNHEALTHY, reason="XID 79")
    await world.write(sick, node_name="n1", subject="GPU-a")
    async with world.scheduler() as caller:
        [first] = await world.seen(HandshakeRequested)
        report = HandshakeReported(nonce=first.nonce, epoch=1, digest=device_set_digest([A]))
        await world.write(report, node_name="n1", subject="n1")
        await world.settled(caller)
        assert len(await world.events(HandshakeRequested)) == 1


async def test_a_node_that_agrees_is_left_alone(world: World) -> None:
    await world.add_node("n1", A, B)
    async with world.scheduler() as caller:
        [first] = await world.seen(HandshakeRequested)
        await answer(world, first, device_set_digest([B, A]), {})
        await world.settled(caller)
        assert len(await world.events(HandshakeRequested)) == 1
