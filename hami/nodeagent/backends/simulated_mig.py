"""Simulated MIG: cards that can be cut, with an A100's profiles. Kept in a file where lives of an agent come and go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_OID, uuid5

import anyio
import msgspec

from hami.domain.device import Device, MigPlacement, MigProfile
from hami.domain.units import CorePercent, MiB
from hami.nodeagent.decide.mig import Failed, Instance

ATTRIBUTE: Final = "mig"
A100_80GB: Final = tuple(
    MigProfile(name, MiB(memory), CorePercent(cores), slices, tuple(MigPlacement(start, size) for start in starts))
    for name, memory, cores, slices, size, starts in (
        ("1g.10gb", 9728, 15, 1, 1, range(7)),
        ("2g.20gb", 19968, 29, 2, 2, (0, 2, 4)),
        ("3g.40gb", 40192, 43, 3, 4, (0, 4)),
        ("4g.40gb", 40192, 58, 4, 4, (0,)),
        ("7g.80gb", 80384, 100, 7, 8, (0,)),
    )
)


class _Cut(msgspec.Struct, frozen=True, kw_only=True):
    """What a file keeps: the instances, and the cards whose mode was changed since."""

    instances: tuple[Instance, ...] = ()
    enabled: tuple[str, ...] = ()


class SimulatedMig:
    """The cuts of simulated cards. `refuse` scripts a step's failure, `occupy` a process, `needs_reset` a mode that waits."""

    def __init__(self, profiles: Sequence[MigProfile] = A100_80GB, *, file: Path | None = None) -> None:
        self._profiles, self._file = {each.name: each for each in profiles}, file
        self._refusals: dict[str, list[str]] = {}
        self._occupied: set[str] = set()
        self._pending: set[str] = set()
        self._needs_reset: set[str] = set()
        self._held: set[str] = set()
        self._veiled = ""
        self.refused = 0
        """Compute instances that could not be made because there was one."""
        self._cut = _Cut()
        if file is not None and file.exists():
            self._cut = msgspec.json.decode(file.read_bytes(), type=_Cut)

    @property
    def instances(self) -> tuple[Instance, ...]:
        return tuple(self._shown(each) for each in self._cut.instances)

    def refuse(self, step: str, why: str, *, times: int = 1) -> None:
        """`step`: `gpu`, `compute`, `drop_compute` or `drop_gpu`. It fails that often, with that text."""
        self._refusals.setdefault(step, []).extend([why] * times)

    def hold(self, step: str) -> None:
        """The step never returns, as in a library that hangs; nothing of it is done."""
        self._held.add(step)

    async def reach(self, step: str) -> None:
        if step in self._held:
            await anyio.sleep_forever()

    def veil(self, uuid: str) -> None:
        """The compute instance of this name is there, but not shown; empty = all are shown."""
        self._veiled = uuid

    def occupy(self, uuid: str, *, busy: bool = True) -> None:
        """A process in an instance, or on a card that is not cut."""
        (self._occupied.add if busy else self._occupied.discard)(uuid)

    def relent(self) -> None:
        """Nothing that was scripted to fail fails any more."""
        self._refusals.clear()

    def needs_reset(self, card: str) -> None:
        self._needs_reset.add(card)

    def forget_all(self) -> None:
        """As after a reboot: no instance is left."""
        self._keep(())

    def put(self, card: str, profile: str, start: int, *, compute: bool = True) -> Instance:
        """What an operator cut by hand."""
        size = self._profiles[profile].placements[0].size
        made = self.make_gpu(card, profile, MigPlacement(start, size))
        if compute and isinstance(made, Instance):
            made = self.make_compute(made)
        assert isinstance(made, Instance), made
        return made

    def described(self, card: Device) -> Device:
        if card.uuid in self._pending:
            return _with_mode(card, "pending")
        if card.attributes.get(ATTRIBUTE) == "enabled" or card.uuid in self._cut.enabled:
            return msgspec.structs.replace(_with_mode(card, "enabled"), mig_profiles=tuple(self._profiles.values()))
        return card

    def enable(self, card: Device) -> str:
        if ATTRIBUTE not in card.attributes:
            return "Not Supported"
        if card.uuid in self._occupied:
            return "a process runs on the card"
        if card.uuid in self._needs_reset:
            self._pending.add(card.uuid)
            return "the change of mode waits for a reset of the card"
        self._keep(self._cut.instances, enabled=(*self._cut.enabled, card.uuid))
        return ""

    def make_gpu(self, card: str, profile: str, placement: MigPlacement) -> Instance | Failed:
        if why := self._refused("gpu"):
            return Failed(why)
        known = self._profiles.get(profile)
        if known is None or placement not in known.placements:
            return Failed(f"no place {placement.start}+{placement.size} for profile {profile}")
        others = [each for each in self._cut.instances if each.card == card]
        if any(_overlap(placement, each.placement) for each in others):
            return Failed("Insufficient Resources")
        number = next(at for at in range(1, 15) if at not in {each.gpu_instance for each in others})
        made = Instance(
            card=card,
            profile=profile,
            placement=placement,
            gpu_instance=number,
            memory=known.memory,
        )
        self._keep((*self._cut.instances, made))
        return made

    def make_compute(self, instance: Instance) -> Instance | Failed:
        if why := self._refused("compute"):
            return Failed(why)
        there = self._find(instance)
        if there is None or there.uuid:
            self.refused += 1
            return Failed("Not Found" if there is None else "Insufficient Resources")
        name = f"MIG-{uuid5(NAMESPACE_OID, f'{there.card}/{there.gpu_instance}/0')}"
        made = msgspec.structs.replace(there, compute_instance=0, uuid=name)
        self._keep(tuple(made if each == there else each for each in self._cut.instances))
        return made

    def drop_compute(self, instance: Instance) -> str:
        if why := self._refused("drop_compute"):
            return why
        there = self._find(instance)
        if there is None or not there.uuid:
            return ""
        if self._is_busy(there):
            return "In use by another client"
        bare = msgspec.structs.replace(there, compute_instance=None, uuid="")
        self._keep(tuple(bare if each == there else each for each in self._cut.instances))
        return ""

    def drop_gpu(self, instance: Instance) -> str:
        if why := self._refused("drop_gpu"):
            return why
        there = self._find(instance)
        if there is not None and there.uuid:
            return "In use by another client"
        self._keep(tuple(each for each in self._cut.instances if each != there))
        return ""

    def _find(self, instance: Instance) -> Instance | None:
        wanted = instance.card, instance.gpu_instance
        return next((each for each in self._cut.instances if (each.card, each.gpu_instance) == wanted), None)

    def _shown(self, instance: Instance) -> Instance:
        if instance.uuid and instance.uuid == self._veiled:
            return msgspec.structs.replace(instance, compute_instance=None, uuid="")
        return msgspec.structs.replace(instance, busy=self._is_busy(instance))

    def _is_busy(self, instance: Instance) -> bool:
        return instance.uuid in self._occupied or instance.card in self._occupied

    def _refused(self, step: str) -> str:
        left = self._refusals.get(step)
        return left.pop(0) if left else ""

    def _keep(self, instances: tuple[Instance, ...], *, enabled: tuple[str, ...] | None = None) -> None:
        self._cut = _Cut(instances=instances, enabled=self._cut.enabled if enabled is None else enabled)
        if self._file is not None:
            beside = self._file.with_suffix(".new")
            beside.write_bytes(msgspec.json.encode(self._cut))
            beside.replace(self._file)


def _with_mode(card: Device, mode: str) -> Device:
    return msgspec.structs.replace(card, attributes={**card.attributes, ATTRIBUTE: mode})


def _overlap(a: MigPlacement, b: MigPlacement) -> bool:
    return a.start < b.start + b.size and b.start < a.start + a.size
