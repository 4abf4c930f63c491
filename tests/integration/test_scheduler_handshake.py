"""Handshakes: what the log knows of a node beside what the node says."""

import msgspec

from hami.domain.device import Device, Health
from hami.domain.digest import device_set_digest
from hami.events.catalog.device import DeviceHealthChanged
from hami.events.catalog.handshake import DIGEST, FORGOTTEN, HandshakeReported, HandshakeRequested, Held
from tests.support.builders import a_device
from tests.support.scheduler import World
from tests.support.waiting import wait_until

A, B = a_device("GPU-a"), a_device("GPU-b", index=1)


class Asked:
    """Two nodes that are asked at the start: the test answers for `n1`, and `n2` shows when that has been dealt with."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def nodes(self, *devices: Device) -> None:
        await self._world.add_node("n1", *devices)
        await self._world.add_node("n2", a_device("GPU-other"))

    async def of(self, node: str, count: int = 1) -> list[HandshakeRequested]:
        found: list[HandshakeRequested] = []

        async def there() -> bool:
            records = await self._world.records()
            found[:] = [e.event for e in records if isinstance(e.event, HandshakeRequested) and e.envelope.node == node]
            return len(found) >= count

        await wait_until(there, f"{count} questions to {node}")
        return found

    async def answer(
        self, asked: HandshakeRequested, digest: str, health: dict[str, Health], *, node: str = "n1", vendor: str = "NVIDIA"
    ) -> None:
        report = HandshakeReported(nonce=asked.nonce, epoch=1, digest=digest, vendor=vendor, health=health)
        await self._world.write(report, node_name=node, subject=node)

    async def dealt_with(self) -> None:
        """Answers are dealt with in the order of the log: when n2's wrong one was, those before it were too."""
        [question] = await self.of("n2")
        await self.answer(question, "another set", {}, node="n2")
        await self.of("n2", 2)


async def test_a_node_that_has_other_devices_is_asked_to_register_again_once(world: World) -> None:
    asked = Asked(world)
    await asked.nodes(A)
    async with world.scheduler():
        [first] = await asked.of("n1")
        await asked.answer(first, device_set_digest([A, B]), {})
        _, second = await asked.of("n1", 2)
        assert (second.why, second.devices) == (DIGEST, ())
        await asked.answer(second, "still another", {})
        await asked.dealt_with()
        assert len(await asked.of("n1")) == 2


async def test_health_that_the_log_has_differently_is_asked_for_by_card(world: World) -> None:
    asked = Asked(world)
    await asked.nodes(A, B)
    stale = DeviceHealthChanged(device="GPU-b", was=Health.HEALTHY, now=Health.UNHEALTHY, reason="XID 79")
    await world.write(stale, node_name="n1", subject="GPU-b")
    async with world.scheduler():
        [first] = await asked.of("n1")
        await asked.answer(first, device_set_digest([A, B]), {})
        _, second = await asked.of("n1", 2)
        assert (second.why, second.devices) == (DIGEST, ("GPU-b",))
        back = DeviceHealthChanged(device="GPU-b", was=Health.UNKNOWN, now=Health.HEALTHY, reason="")
        await world.write(back, node_name="n1", subject="GPU-b")
        await asked.answer(second, device_set_digest([A, B]), {})
        await asked.dealt_with()
        assert len(await asked.of("n1")) == 2


async def test_a_node_that_agrees_is_left_alone(world: World) -> None:
    asked = Asked(world)
    await asked.nodes(A, B)
    async with world.scheduler():
        [first] = await asked.of("n1")
        await asked.answer(first, device_set_digest([B, A]), {})
        await asked.dealt_with()
        assert len(await asked.of("n1")) == 1


async def test_an_older_agent_that_says_nothing_of_health_is_left_alone(world: World) -> None:
    asked = Asked(world)
    await asked.nodes(A)
    sick = DeviceHealthChanged(device="GPU-a", was=Health.HEALTHY, now=Health.UNHEALTHY, reason="XID 79")
    await world.write(sick, node_name="n1", subject="GPU-a")
    async with world.scheduler():
        [first] = await asked.of("n1")
        await asked.answer(first, device_set_digest([A]), {}, vendor="")
        await asked.dealt_with()
        assert len(await asked.of("n1")) == 1


async def test_a_node_that_has_lost_its_record_hears_what_the_log_holds_once(world: World) -> None:
    asked = Asked(world)
    await asked.nodes(A, B)
    sick = DeviceHealthChanged(device="GPU-b", was=Health.HEALTHY, now=Health.UNHEALTHY, reason="XID 79")
    await world.write(sick, node_name="n1", subject="GPU-b")
    lost = HandshakeReported(nonce="", digest=device_set_digest([A, B]), vendor="NVIDIA", forgotten=("GPU-a", "GPU-b"))
    async with world.scheduler():
        await asked.of("n1")
        await world.write(lost, node_name="n1", subject="n1")
        _, second = await asked.of("n1", 2)
        assert (second.why, second.held) == (FORGOTTEN, {"GPU-b": Held(Health.UNHEALTHY, "XID 79")})
        still = msgspec.structs.replace(lost, nonce=second.nonce)
        await world.write(still, node_name="n1", subject="n1")
        await asked.dealt_with()
        questions = await asked.of("n1")
        assert [each.why for each in questions] == ["scheduler started", FORGOTTEN, DIGEST]
