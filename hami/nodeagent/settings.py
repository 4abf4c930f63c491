"""The agent's settings as its parts want them."""

import re
from typing import Final

from hami.config import AgentSettings
from hami.domain.errors import InvalidInput
from hami.domain.units import MiB
from hami.nodeagent.decide.container import HookSettings
from hami.nodeagent.decide.listing import ListSettings, ListStrategy
from hami.nodeagent.decide.register import NodeConfig, ProfileRule
from hami.nodeagent.registrar import NodeFacts

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NODE_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_NAME: Final = 253


def require_node_name(settings: AgentSettings) -> None:
    """Raises InvalidInput for what no Kubernetes node can be called: events of such a node would belong to nobody."""
    name = settings.node_name
    if not name:
        raise InvalidInput("agent.node_name", "", "the agent must know its node")
    if len(name) > _LONGEST_NAME or _NODE_NAME.fullmatch(name) is None:
        why = "no Kubernetes node has such a name: small letters, digits, '-' and '.', none of these two at an end"
        raise InvalidInput("agent.node_name", name, why)


def node_facts(settings: AgentSettings, node_uid: str, boot_id: str, version: str) -> NodeFacts:
    listing = listing_settings(settings)
    return NodeFacts(
        node=settings.node_name,
        node_uid=node_uid,
        boot_id=boot_id,
        version=version,
        numa_to_kubelet=settings.numa_to_kubelet,
        delivery=listing.delivery,
        visible=listing.visible,
        resource=settings.resource_name,
    )


def hook_settings(settings: AgentSettings) -> HookSettings:
    return HookSettings(
        root=settings.hook_path,
        library=settings.library_file,
        log_level=settings.library_log_level,
        oversubscribe=settings.memory_scaling > 1,
        disable_core_limit=settings.disable_core_limit,
    )


def node_config_of(settings: AgentSettings) -> NodeConfig:
    return NodeConfig(
        split_count=settings.split_count,
        memory_scaling=settings.memory_scaling,
        core_scaling=settings.core_scaling,
        mode=settings.mode,
        preconfigured_memory=MiB(settings.preconfigured_memory_mib),
        exclude_uuids=frozenset(_words(settings.exclude_uuids)),
        exclude_indexes=frozenset(_index(word) for word in _words(settings.exclude_indexes)),
        mig_strategy=settings.mig_strategy,
        mig_profiles=tuple(_profile_rule(text) for text in settings.mig_profiles.split(";") if text.strip()),
    )


def listing_settings(settings: AgentSettings) -> ListSettings:
    """Raises InvalidInput for a strategy that there is not."""
    words = dict.fromkeys(_words(settings.device_list_strategy))
    known = [each.value for each in ListStrategy]
    for word in words:
        if word not in known:
            raise InvalidInput("agent.device_list_strategy", word, "there are " + ", ".join(known))
    if not words:
        raise InvalidInput("agent.device_list_strategy", settings.device_list_strategy, "name at least one strategy")
    extras = (("gdrcopy", settings.gdrcopy), ("gds", settings.gds), ("mofed", settings.mofed))
    return ListSettings(
        strategies=tuple(ListStrategy(word) for word in words),
        by_index=settings.device_id_strategy == "index",
        device_nodes=settings.pass_device_specs,
        dev_root=settings.dev_root or settings.nvidia_driver_root,
        driver_root=settings.nvidia_driver_root,
        cdi_prefix=settings.cdi_annotation_prefix,
        imex=(0,) if settings.imex_channels else (),
        extras=tuple(name for name, on in extras if on),
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _index(word: str) -> int:
    if not word.isdecimal():
        raise InvalidInput("agent.exclude_indexes", word, "must be a card's index")
    return int(word)


def _profile_rule(text: str) -> ProfileRule:
    models, _, profiles = text.partition("=")
    rule = ProfileRule(tuple(model.strip() for model in models.split("|") if model.strip()), tuple(_words(profiles)))
    if not rule.models or not rule.profiles:
        raise InvalidInput("agent.mig_profiles", text.strip(), "must be `MODEL|MODEL=PROFILE,PROFILE`")
    return rule
