"""A vendor as data: its word, the resources it sells, how it is asked, how its cards fit, what it writes.

Where data does not reach, a page names a rule: a member of the closed sets below (their code stands in the scheduler's
decide room) or a small function of its own page.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Final

import msgspec

from hami.domain.allocation import ContainerShares
from hami.domain.cluster import NodeState
from hami.domain.device import Device
from hami.domain.pod import Container, EnvVar, Node, Pod, Quantity
from hami.domain.request import DeviceRequest, PodRequest
from hami.domain.units import CorePercent, MiB


class Check(StrEnum):
    """One question to one card. A page lists them in order: the first that fails is the card's reason."""

    __hash__ = str.__hash__
    """Looked up for every request; the one of Enum is slow."""

    HEALTH = "the card is healthy"
    CORDON = "the card is not cordoned"
    TYPE = "its model (and mode) is one the pod accepts"
    NUMA = "it lies on the same NUMA node as the cards before it, where the pod wants that"
    UUID = "its uuid is one the pod accepts"
    SLOTS = "it has a free slot"
    MUTEX = "it is idle, where the pod's policy is mutex"
    QUOTA = "the namespace's quota bears it"
    MEMORY = "it has the memory"
    CORES = "it has the cores"
    EXCLUSIVE = "it is idle, where the whole card is asked for"
    EXHAUSTED = "it has cores left, where none are asked for"
    BOARD_MUTEX = "it is idle (where the cards are dies: its whole board is), where the pod's policy is mutex"
    SAME_CARD = "it is the card that the pod's other containers hold"
    MIG = "a MIG profile has a free place on it"
    COMPUTE_UNITS = "it has the compute units"
    NEURON_CORES = "it has the cores, counted as bits"
    UNHEALTHY = "the card is healthy, in this vendor's own word"
    APP_CLASS = "the classes of the pods on it bear the pod's own"
    QOS = "it is idle, wanted whole, or shared by the pod's policy"
    IDLE = "nothing of it is given out"
    WHOLE = "nothing of it is given out, as it is given out whole"
    EQUAL_PARTS = "what is given out of it are parts of the size asked for"
    COUNTED_CORES = "it has the cores, where it says how many"
    SPLIT_CORES = "it has the cores, out of 100 where the pod wants a soft split"
    SPLIT_EXCLUSIVE = "it is idle, where the whole card, or all 100 of a soft split, is asked for"
    SPLIT_EXHAUSTED = "it has cores left, of all that it has or of 100, where none are asked for"


STANDARD: Final = (
    Check.HEALTH,
    Check.CORDON,
    Check.TYPE,
    Check.UUID,
    Check.SLOTS,
    Check.MUTEX,
    Check.QUOTA,
    Check.MEMORY,
    Check.CORES,
    Check.EXCLUSIVE,
    Check.EXHAUSTED,
)
"""What most vendors ask, in HAMi's order. QUOTA asks only where `quota_at_fit` is set."""


class Size(StrEnum):
    """How much of a card one share is."""

    SHARE = "memory in MiB or percent of the card, cores in percent"
    NOTHING = "a slot and nothing else"
    COMPUTE_UNITS = "memory in MiB or the whole card, cores in percent of the card's compute units"
    NEURON_CORES = "no memory, cores as a bit mask"
    CLASSED = "memory in MiB or the whole card's, cores in percent, more than 100 of them too, none for an online pod"
    WHOLE = "the whole card"
    PROFILE = "memory and cores of the profile chosen for the node; more slots the larger it is"


class Select(StrEnum):
    """Which of the fitting cards are taken."""

    FIRST = "the first ones in the order of the policy"
    TOPOLOGY = "the first ones, or the best connected with policy topology-aware"
    DIE_GROUPS = "from as few boards as possible, where the cards are dies"
    NEURON_RUNS = "one by policy, several as a run of neighbours"
    CLASS_AND_ZONES = (
        "the first ones in the order of the policy; for an online pod those with the fewest online, then offline pods, those "
        "with offline pods alone last; for whole cards of a pod without a class the smallest link zone that has enough, else "
        "zone after zone from the smallest on, cards without a zone last"
    )
    WINGS = (
        "linked ones, by index: within four neighbours, else across; if that fails, the reason is how many cards mutex, "
        "uuids or cordons ruled out, else `1/<cards> NumaNotFit`"
    )
    PROFILE = "the first ones for which the node has a profile that is large enough, else the reason is `1/<cards> ModeNotFit`"
    SPLIT = "the first ones in the order of the policy, on a node that splits cards as the pod wants"
    NETWORK_GROUPS = "one by policy, several from as few networks as possible, on a node that splits cards as the pod wants"
    CARD_PAIRS = "one by policy, several as pairs (0 and 1, 2 and 3, ...), on a node that splits cards as the pod wants"


class Score(StrEnum):
    """What a vendor adds to a node's score once its cards are chosen."""

    NONE = "nothing"
    SAME_BOARD = "the largest part of a container's cards that share a board"
    NODE_TABLE = (
        "2000 less what the node announces for that many cards: losses where nodes are packed, scores where pods are spread; "
        "nothing where it announces none, or with another policy"
    )
    CLASS_AND_ZONES = (
        "10000 (-10000 where pods are spread) times: for an online pod -100 for each offline pod on a card without online "
        "ones, -20 and -2 for each online and offline pod on another; for whole cards, where link zones count, ten times what "
        "is linked among the cards chosen less the links that the choice breaks"
    )
    WINGS = "1000 to 3000 the fewer groups of four linked cards are broken into, where it has no other vendor's cards"
    SAME_NETWORK = "ten times the largest part of a container's cards that share a network"


class ResourceNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names a container uses to ask; an empty name means that the vendor has no such resource."""

    count: str
    memory: str = ""
    percentage: str = ""
    cores: str = ""
    priority: str = ""

    def all(self) -> tuple[str, ...]:
        return tuple(name for name in (self.count, self.memory, self.percentage, self.cores) if name)


class AnnotationKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Annotation keys of one vendor: written by us (pod), by its plugin (node), by users (wishes).

    `more_uuids`: further (use, nouse) pairs that a card has to pass as well. `lock`: the node annotation its plugin expects
    while a pod is being allocated; empty where it expects none. `lock_names_pod`: its value is `<time>,<namespace>,<pod>`, else
    the time alone. A stranger's lock that stood for `lock_expires_s` counts for nothing.
    """

    allocated: str
    to_allocate: str = ""
    register: str = ""
    handshake: str = ""
    pair_scores: str = ""
    mig: str = ""
    lock: str = ""
    lock_names_pod: bool = True
    lock_expires_s: int = 300
    use_type: str = ""
    nouse_type: str = ""
    use_uuid: str = ""
    nouse_uuid: str = ""
    more_uuids: tuple[tuple[str, str], ...] = ()
    numa_bind: str = ""
    mode: str = ""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What admission adds to one container, and to its pod's annotations. `claims`: the container asks for devices."""

    claims: bool = False
    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}
    env: tuple[EnvVar, ...] = ()
    notes: dict[str, str] = {}


class Refused(msgspec.Struct, frozen=True):
    """Admission of this pod is refused; the message is what its user sees."""

    message: str


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """What a page's writer may know. `containers` hold only this vendor's shares, one entry per container of the pod."""

    containers: tuple[ContainerShares, ...]
    request: PodRequest
    node: NodeState
    now_s: int

    @property
    def last_indices(self) -> str:
        """For plugins that read one list of cards per pod: the last container's that has any."""
        shares = [container.shares for container in self.containers if container.shares][-1]
        return ",".join(str(share.index) for share in shares)


class Vendor(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One accelerator family under one configuration.

    Asking: `memory_factor` multiplies what users write into the memory resource (and the limits of quotas on it).
    `limits_only`: requests do not count. `percent_beside_memory`: the percentage noted where memory is given (None = unset),
    `percent_without_memory` where neither is. `asked_by`: resources that alone are a request; empty = the count only.

    Fit: `checks` in order, `size`, `select`, `score`. `pod_keys`: further pod annotations that its checks read.
    `quota_at_fit`: namespace quota is asked again for every card, not only at admission. `model_in_annotation`: the
    allocation names the card's model instead of the vendor word. `link_zones`: they count for a node's score, unless the pod
    says otherwise. `spares`: checks that a pod with these annotations is not put to. `note`: what later pods on a card have to
    know of a share with so many cores of a pod with these annotations; cores None = somebody else placed it.
    `soft_split`: nodes that do not say whether they can share cards by memory and cores can.
    """

    word: str
    about: str = ""
    """The page's own words, for the documentation."""
    resources: ResourceNames
    keys: AnnotationKeys
    memory_factor: int = 1
    default_memory: MiB = MiB(0)
    default_cores: CorePercent = CorePercent(0)
    default_count: int = 0
    limits_only: bool = False
    percent_beside_memory: int | None = None
    percent_without_memory: int | None = 100
    asked_by: tuple[str, ...] = ()
    runtime_class: str = ""
    core_policy: str = ""
    overwrite_env: bool = False
    checks: tuple[Check, ...] = STANDARD
    size: Size = Size.SHARE
    select: Select = Select.FIRST
    score: Score = Score.NONE
    pod_keys: tuple[str, ...] = ()
    quota_at_fit: bool = False
    soft_split: bool = False
    model_in_annotation: bool = False
    link_zones: bool = False
    identity: bool = False
    """Containers learn their devices from environment that refers to annotations (docs/delivery.md)."""
    ask: "Callable[[Container, Vendor, str], DeviceRequest | None] | None" = None
    """Container, this vendor, the container's place in the spec -> request. None = the common way (`requests`)."""
    admit: "Callable[[Container, Pod, Vendor], Changes | Refused] | None" = None
    """None = the container asks where its limits name the count; nothing is added."""
    discover: "Callable[[Node, Vendor], tuple[Device, ...]] | None" = None
    """Devices that a Node object announces. Raises InvalidInput where it announces them in an unreadable way."""
    spares: "Callable[[Mapping[str, str]], frozenset[Check]] | None" = None
    note: "Callable[[Mapping[str, str], int | None], str] | None" = None
    alive_by_capacity: bool = False
    """Its plugin counts as gone where the node's capacity has none of the count resource."""
    differs: tuple[str, ...] = ()
    """Entries of docs/differences.md that are about this vendor."""
    annotate: "Callable[[Writing, Vendor], Mapping[str, str]] | None" = None
    """Annotations of a placed pod beyond `allocated` and `to_allocate`."""

    @cached_property
    def wish_keys(self) -> tuple[str, ...]:
        """The annotations of a pod that a placement on its cards reads."""
        own = self.keys
        further = (key for pair in own.more_uuids for key in pair)
        named = (own.use_type, own.nouse_type, own.use_uuid, own.nouse_uuid, own.numa_bind, own.mode, *further, *self.pod_keys)
        return tuple(key for key in named if key)

    @cached_property
    def plain(self) -> bool:
        """Is its fit the standard one, which the planes know how to answer for many nodes at once?"""
        checks = tuple(each for each in self.checks if each not in {Check.NUMA, Check.MIG})
        return (
            checks == STANDARD
            and self.size is Size.SHARE
            and self.select in {Select.FIRST, Select.TOPOLOGY}
            and self.score is Score.NONE
        )
