"""Scripted devices: the backend of the demo, and of tests that are not about a library."""

from collections import deque
from typing import Final

import anyio
import msgspec

from hami.domain.device import Device, MigPlacement
from hami.domain.errors import DeviceUnavailable
from hami.nodeagent.backends.base import Inventory
from hami.nodeagent.backends.simulated_mig import ATTRIBUTE, SimulatedMig
from hami.nodeagent.decide.faults import Counters, Evidence, Fault, FaultKind, Piece
from hami.nodeagent.decide.mig import INSTANCE, Failed, Instance

SOUND: Final = Counters(uncorrected=0, remapped=0, remap_pending=False, remap_failure=False)


class SimulatedBackend:
    """Devices that do what they are told: `strike`, `lose`, `restore`, `act`, `count`, `silence`, `break_library`.

    `mig` holds what is cut out of them, for cards whose attribute `mig` says that they can be cut.
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        *,
        vendor: str = "NVIDIA",
        driver: str = "simulated",
        mig: SimulatedMig | None = None,
    ) -> None:
        self.mig = mig or SimulatedMig()
        self._devices = {device.uuid: device for device in devices}
        self._vendor, self._driver = vendor, driver
        self._lost: dict[str, str] = {}
        self._actions: dict[str, int | None] = {}
        self._counters: dict[str, Counters] = {}
        self._unmonitored: dict[str, str] = {}
        self._pending: deque[Fault] = deque()
        self._wake = anyio.Event()
        self._broken = ""
        self._open = False

    @property
    def vendor(self) -> str:
        return self._vendor

    def strike(self, uuid: str, xid: int, *, gpu_instance: int | None = None, compute_instance: int | None = None) -> None:
        """An XID on a card, with the recovery action the card then shows, and the instance that the driver names."""
        fault = Fault(
            uuid=uuid,
            kind=FaultKind.XID,
            code=xid,
            recovery_action=self._actions.get(uuid),
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
            pieces=self._pieces(uuid),
        )
        self._report(fault)

    def fault(self, fault: Fault) -> None:
        """Any fault, as given."""
        self._report(fault)

    def lose(self, uuid: str) -> None:
        """The card falls off the bus: it is reported once, and missing from then on."""
        self._lost[uuid] = "GPU is lost"
        self._report(Fault(uuid=uuid, kind=FaultKind.GPU_LOST, detail="GPU is lost", pieces=self._pieces(uuid)))

    def restore(self, uuid: str) -> None:
        """The card is back (a reset or a reboot)."""
        self._lost.pop(uuid, None)

    def act(self, uuid: str, action: int | None) -> None:
        """Set the recovery action that the card shows; None = it cannot be read."""
        self._actions[uuid] = action

    def count(self, uuid: str, counters: Counters) -> None:
        """Set what the card says of its memory."""
        self._counters[uuid] = counters

    def silence(self, uuid: str, why: str) -> None:
        """The card answers, but no fault of it will be heard."""
        self._unmonitored[uuid] = why

    def break_library(self, why: str) -> None:
        """Every call fails until it is mended with an empty text."""
        self._broken = why
        self._wake.set()

    async def open(self) -> None:
        self._check()
        self._open = True

    async def inventory(self) -> Inventory:
        self._check()
        return Inventory(
            devices=tuple(self.mig.described(device) for uuid, device in self._devices.items() if uuid not in self._lost),
            unavailable=dict(self._lost),
            unmonitored=dict(self._unmonitored),
            driver=self._driver,
            instances=tuple(each for each in self.mig.instances if each.card not in self._lost),
        )

    async def wait_faults(self, timeout_s: float) -> tuple[Fault, ...]:
        self._check()
        if not self._pending:
            if self._wake.is_set():
                self._wake = anyio.Event()
            with anyio.move_on_after(timeout_s):
                await self._wake.wait()
            self._check()
        seen = tuple(self._pending)
        self._pending.clear()
        return seen

    async def probe(self, uuid: str) -> tuple[Evidence, tuple[Fault, ...]]:
        self._check()
        parent = next((each.card for each in self.mig.instances if each.uuid == uuid), uuid)
        if parent == uuid and uuid.startswith(INSTANCE):
            return Evidence(), ()
        if parent in self._lost or parent not in self._devices:
            lost = Fault(uuid=uuid, kind=FaultKind.GPU_LOST, detail=self._lost.get(parent, "no such card"))
            return Evidence(probe_passed=False), (lost,)
        counters = self._counters.get(uuid, SOUND)
        action = self._actions.get(parent, 0)
        evidence = Evidence(probe_passed=True, recovery_action=action, memory_clean=counters.clean, counters=counters)
        asked = Fault(uuid=uuid, kind=FaultKind.RECOVERY_ACTION, recovery_action=action, pieces=self._pieces(uuid))
        return evidence, (asked,) if action and parent == uuid else ()

    async def enable_mig(self, card: str) -> str:
        self._check()
        found = self._devices.get(card)
        return "Not Found" if found is None or card in self._lost else self.mig.enable(found)

    async def make_gpu_instance(self, card: str, profile: str, placement: MigPlacement) -> Instance | Failed:
        await self.mig.reach("gpu")
        return self._gone(card) or self.mig.make_gpu(card, profile, placement)

    async def make_compute_instance(self, instance: Instance) -> Instance | Failed:
        await self.mig.reach("compute")
        return self._gone(instance.card) or self.mig.make_compute(instance)

    async def drop_compute_instances(self, instance: Instance) -> str:
        await self.mig.reach("drop_compute")
        self._check()
        return self.mig.drop_compute(instance)

    async def drop_gpu_instance(self, instance: Instance) -> str:
        await self.mig.reach("drop_gpu")
        self._check()
        return self.mig.drop_gpu(instance)

    async def close(self) -> None:
        self._open = False

    def _pieces(self, uuid: str) -> tuple[Piece, ...]:
        return tuple(
            Piece(each.gpu_instance, each.compute_instance, each.uuid)
            for each in self.mig.instances
            if each.card == uuid and each.compute_instance is not None
        )

    def _gone(self, card: str) -> Failed | None:
        self._check()
        found = self._devices.get(card)
        if found is None or card in self._lost:
            return Failed("Not Found")
        enabled = self.mig.described(found).attributes.get(ATTRIBUTE) == "enabled"
        return None if enabled else Failed("Not Supported")

    def _report(self, fault: Fault) -> None:
        if fault.uuid in self._unmonitored:
            return
        self._pending.append(fault)
        self._wake.set()

    def _check(self) -> None:
        if self._broken:
            raise DeviceUnavailable(self._broken)


def simulated_cards(
    count: int, *, model: str = "NVIDIA A100-SXM4-80GB", memory: int = 81920, prefix: str = "00000000", mig: str = ""
) -> tuple[Device, ...]:
    """`count` equal cards with stable ids: the same arguments give the same cards. `mig` is their MIG mode, if any."""
    extra = {ATTRIBUTE: mig} if mig else {}
    blank = {"vendor": "NVIDIA", "model": model, "memory": memory, "cores": 100, "slots": 1}
    return tuple(
        msgspec.convert(
            {
                **blank,
                "uuid": f"GPU-{prefix}-0000-0000-0000-{number:012x}",
                "index": number,
                "numa": number * 2 // max(count, 1),
                "attributes": {"minor": str(number), "pci": f"0000:{16 + number:02x}:00.0", "cuda": "8.0", **extra},
            },
            Device,
        )
        for number in range(count)
    )
