"""Why a node or a card was passed over: the words users see, HAMi's spelling kept (facts: HAMi reason vocabulary)."""

from enum import StrEnum


class Reason(StrEnum):
    """One word per failing check. `N/M Word` in a node's text means N of M candidate cards failed this check first."""

    CARD_NOT_HEALTHY = "CardNotHealth"
    CARD_CORDONED = "CardCordoned"
    CARD_TYPE_MISMATCH = "CardTypeMismatch"
    CARD_UUID_MISMATCH = "CardUuidMismatch"
    CARD_TIME_SLICING_EXHAUSTED = "CardTimeSlicingExhausted"
    CARD_COMPUTE_UNITS_EXHAUSTED = "CardComputeUnitsExhausted"
    CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
    CARD_INSUFFICIENT_CORE = "CardInsufficientCore"
    CARD_MIG_TOPOLOGY_INFEASIBLE = "CardMigTopologyInfeasible"
    CARD_NOT_FOUND_CUSTOM_FILTER_RULE = "CardNotFoundCustomFilterRule"
    NUMA_NOT_FIT = "NumaNotFit"
    EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT = "ExclusiveDeviceAllocateConflict"
    ALLOCATED_CARDS_INSUFFICIENT_REQUEST = "AllocatedCardsInsufficientRequest"
    RESOURCE_QUOTA_NOT_FIT = "ResourceQuotaNotFit"
    MODE_NOT_FIT = "ModeNotFit"
    CARD_UNHEALTHY = "CardUnhealthy"
    CARD_APP_CLASS_MISMATCH = "CardAppClassMismatch"
    CARD_QOS_POLICY_MISMATCH = "CardQosPolicyMismatch"
    NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"


class NodeReason(StrEnum):
    """Why a whole node was passed over before its cards were looked at. Fixed texts: they never carry ages or names."""

    UNREGISTERED = "node unregistered"
    LOST = "node lost: its agent's lease expired"
    QUARANTINED = "node quarantined: an event of it could not be read"
    DEVICE_TYPE_NOT_FOUND = "Device type not found"
    RESERVATION_EXISTS = "pod has a live reservation on another node"
