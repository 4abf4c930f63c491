"""What the agent needs of a device library, whichever it is."""

from typing import Protocol

import msgspec

from hami.domain.device import Device, MigPlacement
from hami.nodeagent.decide.faults import Evidence, Fault
from hami.nodeagent.decide.mig import Failed, Instance


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The cards of this node as the library sees them, before splitting and scaling: memory is the card's own, slots 1.

    `unavailable` maps a card (uuid, or `index N` when it would not say) to why it could not be described;
    `unmonitored` maps uuids to why no fault of theirs will be heard. Order is the library's (PCI order).

    A card that can do MIG says so in its attribute `mig`: `disabled`, `pending` (a change of mode waits for a reset) or
    `enabled`; then it lists its profiles, and what is cut out of it stands in `instances`.
    """

    devices: tuple[Device, ...] = ()
    unavailable: dict[str, str] = msgspec.field(default_factory=dict)
    unmonitored: dict[str, str] = msgspec.field(default_factory=dict)
    driver: str = ""
    instances: tuple[Instance, ...] = ()


class DeviceBackend(Protocol):
    """One vendor's devices on this node.

    Contract: no call raises anything but DeviceUnavailable, and only when the library as a whole cannot be used; one sick
    card is a value (in `unavailable`, a Fault, an Evidence). Faults that happen between `open` and the first `wait_faults`
    are not lost. All calls may be made from several tasks at once.
    """

    @property
    def vendor(self) -> str:
        """The vendor word, such as `NVIDIA`."""
        ...

    async def open(self) -> None:
        """Load and initialise the library and start listening for faults. Opening twice is one opening."""
        ...

    async def inventory(self) -> Inventory:
        """The cards as they are now; a card that has vanished since is in `unavailable`."""
        ...

    async def wait_faults(self, timeout_s: float) -> tuple[Fault, ...]:
        """The faults seen since the last call, in order, waiting up to `timeout_s` for the first. Empty on time-out."""
        ...

    async def probe(self, uuid: str) -> tuple[Evidence, tuple[Fault, ...]]:
        """Ask one card how it is: evidence for recovery, and the faults that its state alone shows (lost, reset required).

        `boot_id` is left empty here: the machine's boot is not the library's business.
        """
        ...

    async def close(self) -> None:
        """Let go of the library. Closing what is not open does nothing."""
        ...


class MigBackend(DeviceBackend, Protocol):
    """Devices that can be cut by MIG. The cuts are made one step at a time, so that a caller can undo what a later step spoils.

    Contract: as above; whatever is wrong with a card, a profile or an instance is a `Failed`, or a text that says why.
    A card must be in MIG mode for all but `enable_mig`.
    """

    async def enable_mig(self, card: str) -> str:
        """Put an idle card into MIG mode. A card on which a process runs, or may run, is refused."""
        ...

    async def make_gpu_instance(self, card: str, profile: str, placement: MigPlacement) -> Instance | Failed:
        """Exactly there, or not at all. The instance has no compute instance yet."""
        ...

    async def make_compute_instance(self, instance: Instance) -> Instance | Failed:
        """One that has the whole GPU instance to itself. The answer carries its uuid."""
        ...

    async def drop_compute_instances(self, instance: Instance) -> str:
        """All that the GPU instance has. None there is success."""
        ...

    async def drop_gpu_instance(self, instance: Instance) -> str:
        """Refused while it has compute instances. One that is not there is success."""
        ...
