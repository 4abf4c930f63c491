"""Settings: typed, documented, each with the place its value came from.

Order, later wins: default in the struct, TOML file (a table for each struct), environment (`HAMI_<TABLE>_<FIELD>`),
command line.
Only composition roots call `load`. A bad value raises InvalidInput with the path of the field and where it came from.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from hami.domain.errors import InvalidInput

S = TypeVar("S", bound=msgspec.Struct)

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `redis`: where the log lives."""

    url: Annotated[str, msgspec.Meta(description="redis://, rediss:// or unix:// URL of the event store")] = (
        "redis://127.0.0.1:6379/0"
    )
    partition: Annotated[str, msgspec.Meta(description="Hash tag shared by all keys of one log")] = "p0"
    command_timeout_s: Annotated[
        float,
        msgspec.Meta(gt=0, description="Longest wait for one command; too small doubles retries, too big hides an outage"),
    ] = 2.0
    block_s: Annotated[
        float, msgspec.Meta(gt=0, le=30, description="How long one blocking read waits before it asks again")
    ] = 2.0
    connect_timeout_s: Annotated[float, msgspec.Meta(gt=0, description="Longest wait for a connection")] = 2.0
    durability: Annotated[
        str,
        msgspec.Meta(pattern="^(dev|prod)$", description="`prod` waits for the append-only file (WAITAOF, 7.2+) on decisions"),
    ] = "dev"


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `scheduler`: extender, webhook and the loops beside them."""

    name: Annotated[str, msgspec.Meta(description="spec.schedulerName that the webhook sets")] = "hami-scheduler"
    id: Annotated[str, msgspec.Meta(description="Producer name of this replica; empty = host name")] = ""
    http_bind: Annotated[str, msgspec.Meta(description="Address of extender and webhook")] = "127.0.0.1:8080"
    metrics_bind: Annotated[str, msgspec.Meta(description="Address of /metrics; empty = on http_bind only")] = ""
    cert_file: Annotated[str, msgspec.Meta(description="TLS certificate; with key_file, else plain HTTP")] = ""
    key_file: Annotated[str, msgspec.Meta(description="TLS key")] = ""
    kubeconfig: Annotated[str, msgspec.Meta(description="Path of a kubeconfig; empty = in-cluster")] = ""
    node_policy: Annotated[str, msgspec.Meta(pattern="^(binpack|spread)$", description="Default node policy")] = "binpack"
    gpu_policy: Annotated[str, msgspec.Meta(description="Default device policy or ordered comma list")] = "spread"
    placement: Annotated[
        str, msgspec.Meta(pattern="^(winner|scored)$", description="`winner`: filter answers one node; `scored`: all that fit")
    ] = "winner"
    force_overwrite_default_scheduler: Annotated[
        bool, msgspec.Meta(description="Take over pods that name default-scheduler")
    ] = True
    device_config: Annotated[str, msgspec.Meta(description="HAMi's device-config.yaml; empty = its chart defaults")] = ""
    control_plane_user: Annotated[
        str, msgspec.Meta(description="User name whose writes to reserved keys and bindings are accepted")
    ] = "system:serviceaccount:hami-system:hami-scheduler"
    reservation_ttl_s: Annotated[
        float, msgspec.Meta(gt=0, description="A reservation not bound within this lapses; too small wastes decisions")
    ] = 60.0
    max_staleness_s: Annotated[
        float, msgspec.Meta(gt=0, description="Filter refuses when the view was not confirmed for this long")
    ] = 5.0
    lock_ttl_s: Annotated[float, msgspec.Meta(gt=0, description="Node lock TTL; renewed at a third while binding")] = 5.0
    bind_wait_s: Annotated[
        float, msgspec.Meta(gt=0, description="Longest wait for a node lock in bind; keep below the extender's httpTimeout")
    ] = 8.0
    mig_wait_s: Annotated[
        float, msgspec.Meta(gt=0, le=10, description="Longest wait of a bind for the node to make a MIG instance")
    ] = 8.0
    reconcile_s: Annotated[float, msgspec.Meta(gt=0, description="Seconds between comparisons with the API")] = 30.0
    reaper_s: Annotated[float, msgspec.Meta(gt=0, description="Seconds between looks for lapsed reservations")] = 1.0
    sweep_s: Annotated[float, msgspec.Meta(gt=0, description="Seconds between looks at node leases")] = 5.0
    handshake_s: Annotated[
        float, msgspec.Meta(ge=0, description="Seconds between handshakes with a node; 0 = at start only")
    ] = 300.0
    compat: Annotated[
        bool, msgspec.Meta(description="Serve device plugins that speak HAMi's annotations; see docs/compatibility.md")
    ] = True
    compat_silence_s: Annotated[
        float, msgspec.Meta(gt=0, description="Such a plugin that reports nothing for so long is gone, as in HAMi")
    ] = 60.0
    compat_answer_s: Annotated[
        float,
        msgspec.Meta(gt=0, description="Least time between two answers to one plugin's handshake; each is a write to a node"),
    ] = 15.0
    compat_serve_s: Annotated[
        float,
        msgspec.Meta(gt=0, description="A pod that its plugin has not served so long after its reservation's deadline fails"),
    ] = 120.0
    checkpoint_every: Annotated[int, msgspec.Meta(gt=0, description="Events between checkpoints")] = 10_000
    archive_dir: Annotated[
        str, msgspec.Meta(description="Archive to read where the log is trimmed and no checkpoint can be used; empty = none")
    ] = ""
    legacy_metrics: Annotated[bool, msgspec.Meta(description="Also export HAMi's metric names from before v2.9")] = False
    max_body_mib: Annotated[int, msgspec.Meta(gt=0, description="Largest HTTP body accepted")] = 64


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `agent`: one node's devices."""

    node_name: Annotated[str, msgspec.Meta(description="Name of this Kubernetes node (NODE_NAME)")] = ""
    node_uid: Annotated[
        str, msgspec.Meta(description="Uid of the Node object; empty = asked of the Kubernetes API, where there is access")
    ] = ""
    backend: Annotated[str, msgspec.Meta(pattern="^(nvml|simulated)$", description="How devices are reached")] = "nvml"
    simulated_devices: Annotated[str, msgspec.Meta(description="JSON file that scripts the simulated backend")] = ""
    kubelet_dir: Annotated[str, msgspec.Meta(description="Folder of kubelet.sock and of our socket")] = (
        "/var/lib/kubelet/device-plugins"
    )
    pod_resources_socket: Annotated[str, msgspec.Meta(description="The kubelet's pod-resources socket")] = (
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    resource_name: Annotated[str, msgspec.Meta(description="Resource the plugin registers")] = "nvidia.com/gpu"
    state_dir: Annotated[str, msgspec.Meta(description="Folder for the agent's epoch, health verdicts and outbox cursor")] = (
        "/var/lib/hami"
    )
    hook_path: Annotated[str, msgspec.Meta(description="Folder with vgpu/libvgpu.so on the host (HAMi: HOOK_PATH)")] = (
        "/usr/local"
    )
    driver_root: Annotated[str, msgspec.Meta(description="Where libnvidia-ml is looked for")] = "/driver-root"
    split_count: Annotated[int, msgspec.Meta(gt=0, description="Slots of each device (HAMi: deviceSplitCount)")] = 10
    memory_scaling: Annotated[float, msgspec.Meta(gt=0, description="HAMi: deviceMemoryScaling")] = 1.0
    core_scaling: Annotated[float, msgspec.Meta(gt=0, description="HAMi: deviceCoreScaling")] = 1.0
    mode: Annotated[str, msgspec.Meta(pattern="^(hami-core|mps|mig)$", description="HAMi: operatingmode")] = "hami-core"
    mig_strategy: Annotated[
        str, msgspec.Meta(pattern="^(none|single|mixed)$", description="How instances that an operator cut are offered")
    ] = "none"
    mig_profiles: Annotated[
        str,
        msgspec.Meta(description="Profiles that mode `mig` may make: `A100|A30=1g.10gb,2g.20gb;H100=1g.10gb`; empty = all"),
    ] = ""
    mig_gate: Annotated[
        str, msgspec.Meta(description="File kept while an operator changes MIG; empty = mig-apply.lock in state_dir")
    ] = ""
    preconfigured_memory_mib: Annotated[
        int, msgspec.Meta(ge=0, description="Memory of cards that cannot tell theirs (HAMi: preConfiguredDeviceMemory)")
    ] = 0
    exclude_uuids: Annotated[str, msgspec.Meta(description="Comma list of cards offered to nobody (HAMi: filterdevices)")] = ""
    exclude_indexes: Annotated[str, msgspec.Meta(description="The same by index")] = ""
    numa_to_kubelet: Annotated[bool, msgspec.Meta(description="Tell the kubelet NUMA nodes (HAMi: enableNumaTopology)")] = False
    library_file: Annotated[str, msgspec.Meta(description="Versioned name of libvgpu.so, preferred where it exists")] = ""
    library_log_level: Annotated[str, msgspec.Meta(description="LIBCUDA_LOG_LEVEL of containers; empty = unset")] = "1"
    disable_core_limit: Annotated[bool, msgspec.Meta(description="Switch the core limit off in every container")] = False
    health_profile: Annotated[
        str, msgspec.Meta(pattern="^(default|hami)$", description="XID policy; `hami`: its ignore list, all else condemns")
    ] = "default"
    disable_healthchecks: Annotated[
        str, msgspec.Meta(description="HAMi: DP_DISABLE_HEALTHCHECKS, comma list of XIDs, `all` or `xids`")
    ] = ""
    enable_healthchecks: Annotated[
        str, msgspec.Meta(description="HAMi: DP_ENABLE_HEALTHCHECKS, wins over every way of disabling")
    ] = ""
    device_list_strategy: Annotated[
        str, msgspec.Meta(description="Comma list of envvar, volume-mounts, cdi-annotations, cdi-cri; see docs/delivery.md")
    ] = "envvar"
    device_id_strategy: Annotated[
        str, msgspec.Meta(pattern="^(uuid|index)$", description="What names a card to the container's runtime")
    ] = "uuid"
    pass_device_specs: Annotated[bool, msgspec.Meta(description="Put device nodes into the answer to the kubelet")] = False
    nvidia_driver_root: Annotated[str, msgspec.Meta(description="The driver's root on the host, as CDI files name it")] = "/"
    dev_root: Annotated[str, msgspec.Meta(description="Host folder above dev/; empty = nvidia_driver_root")] = ""
    cdi_dir: Annotated[str, msgspec.Meta(description="Folder of CDI specifications")] = "/var/run/cdi"
    cdi_annotation_prefix: Annotated[str, msgspec.Meta(description="Prefix of CDI annotations")] = "cdi.k8s.io/"
    cdi_hook_path: Annotated[str, msgspec.Meta(description="nvidia-cdi-hook or nvidia-ctk on the host")] = "/usr/bin/nvidia-ctk"
    imex_channels: Annotated[
        str, msgspec.Meta(pattern="^(0?)$", description="IMEX channel given to containers; empty = none")
    ] = ""
    imex_required: Annotated[bool, msgspec.Meta(description="Do not start without the IMEX channel's device node")] = False
    gdrcopy: Annotated[bool, msgspec.Meta(description="Bring GDRCopy along with any device")] = False
    gds: Annotated[bool, msgspec.Meta(description="Bring GPUDirect Storage along with any device")] = False
    mofed: Annotated[bool, msgspec.Meta(description="Bring Mellanox devices along with any device")] = False
    device_config: Annotated[
        str, msgspec.Meta(description="HAMi's device-config.yaml: section nvidia fills what is set nowhere else")
    ] = ""
    node_config: Annotated[
        str, msgspec.Meta(description="HAMi's per-node JSON, read where it exists; its entry wins over device_config")
    ] = "/config/config.json"
    register_annotation: Annotated[
        bool, msgspec.Meta(description="Write HAMi's register annotation to the Node object, on change")
    ] = False
    topology_annotation: Annotated[
        bool, msgspec.Meta(description="Write HAMi's pair scores as well (HAMi: ENABLE_TOPOLOGY_SCORE)")
    ] = False
    kubeconfig: Annotated[
        str, msgspec.Meta(description="Path of a kubeconfig for these annotations and the node's uid; empty = in-cluster")
    ] = ""
    lease_ttl_s: Annotated[float, msgspec.Meta(gt=0, description="Liveness lease; a node is lost when it runs out")] = 45.0
    lease_every_s: Annotated[float, msgspec.Meta(gt=0, description="Seconds between renewals")] = 15.0
    sidecar_url: Annotated[str, msgspec.Meta(description="Redis sidecar for the outbox; empty = bounded memory only")] = ""
    outbox_limit: Annotated[int, msgspec.Meta(gt=0, description="Events kept while the store is away")] = 5_000
    metrics_bind: Annotated[str, msgspec.Meta(description="Address of /metrics and /healthz; empty = none")] = ""


class AlertsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `alerts`: notices from the log to Alertmanager, a webhook and standard output."""

    group: Annotated[
        str, msgspec.Meta(pattern="^[a-z0-9-]+$", description="Consumer group; another set of sinks needs another one")
    ] = "alerts"
    id: Annotated[str, msgspec.Meta(description="Consumer name of this replica; empty = host name")] = ""
    http_bind: Annotated[str, msgspec.Meta(description="Address of /healthz, /readyz and /metrics; empty = none")] = (
        "127.0.0.1:9396"
    )
    alertmanager_url: Annotated[
        str, msgspec.Meta(description="Base URL of Alertmanager; several with spaces between: each gets everything")
    ] = ""
    resend_s: Annotated[
        float, msgspec.Meta(gt=0, description="Seconds between telling Alertmanager again what fires; it forgets after four")
    ] = 60.0
    once_s: Annotated[
        float, msgspec.Meta(gt=0, description="How long an alert that happened once stays active in Alertmanager")
    ] = 300.0
    webhook_url: Annotated[str, msgspec.Meta(description="URL that gets each notice as a JSON document by POST")] = ""
    webhook_token_file: Annotated[
        str, msgspec.Meta(description="File with a bearer token for the webhook, read for every notice")
    ] = ""
    log: Annotated[bool, msgspec.Meta(description="Write each notice as a JSON line to standard output")] = True
    labels: Annotated[
        str, msgspec.Meta(description="Labels of every notice as name=value, commas between, such as cluster=east")
    ] = ""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, description="Longest wait for a sink's answer")] = 10.0
    retry_most_s: Annotated[float, msgspec.Meta(gt=0, description="Longest pause before a sink is tried again")] = 30.0
    lease_ttl_s: Annotated[
        float, msgspec.Meta(ge=1, description="A replica that sends and dies is replaced after this; small doubles store load")
    ] = 10.0
    sweep_s: Annotated[
        float, msgspec.Meta(gt=0, description="Seconds between looks for entries that another consumer left lying")
    ] = 30.0
    checkpoint_every: Annotated[int, msgspec.Meta(gt=0, description="Events between checkpoints")] = 10_000


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `archive`: sealed segments of the log, and how long the log itself keeps what is sealed."""

    dir: Annotated[
        str, msgspec.Meta(description="Folder of sealed segments; verbs that read the past look there too, where it exists")
    ] = ""
    id: Annotated[str, msgspec.Meta(description="Producer name of this replica; empty = host name")] = ""
    segment_events: Annotated[
        int, msgspec.Meta(ge=2, le=1_000_000, description="Most events in a segment; they are in memory while it is sealed")
    ] = 50_000
    segment_s: Annotated[float, msgspec.Meta(ge=0, description="A segment is sealed when its first event is this old")] = 900.0
    settle_s: Annotated[
        float, msgspec.Meta(ge=0, description="Younger events wait: a failover may still lose them, an archive cannot")
    ] = 30.0
    keep_hours: Annotated[
        float, msgspec.Meta(ge=0, description="The log itself keeps events for this long, however well they are archived")
    ] = 168.0
    trim: Annotated[bool, msgspec.Meta(description="Trim the log; false = only seal")] = True
    trim_s: Annotated[float, msgspec.Meta(gt=0, description="Seconds between looks at what may be trimmed")] = 300.0
    poll_s: Annotated[float, msgspec.Meta(gt=0, description="Seconds between looks at what is new")] = 10.0
    lease_ttl_s: Annotated[
        float, msgspec.Meta(gt=0, description="Another replica takes over this long after the active one has died")
    ] = 30.0
    metrics_bind: Annotated[str, msgspec.Meta(description="Address of /metrics, /healthz and /readyz; empty = none")] = ""


SETTINGS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("redis", RedisSettings),
    ("scheduler", SchedulerSettings),
    ("agent", AgentSettings),
    ("alerts", AlertsSettings),
    ("archive", ArchiveSettings),
)
"""Every table there is: the reference page and `hami config show` come from this list."""


class Loaded(NamedTuple):
    """Settings and, by field, where each value came from (`default`, the file's path, an environment variable, a flag)."""

    value: Any
    sources: Mapping[str, str]


def load(
    kind: type[S],
    table: str,
    *,
    file: str | None,
    env: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    flag_prefix: str = "",
) -> tuple[S, Mapping[str, str]]:
    """Settings of one table and the source of each field. Raises InvalidInput.

    `flag_prefix` is what the command line puts before this table's options (`redis-`), for naming the source.
    """
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    if file:
        for name, value in _table_of(file, table).items():
            values[name], sources[name] = value, file
    for field in msgspec.structs.fields(kind):
        variable = f"HAMI_{table}_{field.name}".upper()
        if variable in env:
            values[field.name], sources[field.name] = env[variable], variable
    for name, flag in (flags or {}).items():
        if flag is not None:
            values[name], sources[name] = flag, f"--{flag_prefix}{name.replace('_', '-')}"
    settings = _convert(kind, table, values, sources)
    return settings, {field.name: sources.get(field.name, "default") for field in msgspec.structs.fields(kind)}


def _table_of(file: str, table: str) -> dict[str, object]:
    try:
        document = tomllib.loads(Path(file).read_text())
    except OSError as error:
        raise InvalidInput("config file", file, error.strerror or "cannot be read") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("config file", file, str(error)) from error
    unknown = sorted(set(document) - {name for name, _ in SETTINGS})
    if unknown:
        raise InvalidInput(f"{file}: table", unknown[0], "no such table; there are " + ", ".join(n for n, _ in SETTINGS))
    found = document.get(table, {})
    if not isinstance(found, dict):
        raise InvalidInput(f"{file}: {table}", found, "must be a table")
    return found


def _convert(kind: type[S], table: str, values: Mapping[str, object], sources: Mapping[str, str]) -> S:
    for name, value in values.items():
        try:
            msgspec.convert({name: value}, kind, strict=False)
        except msgspec.ValidationError as error:
            why = str(error).partition(" - at ")[0]
            raise InvalidInput(f"{table}.{name} (from {sources[name]})", value, why) from error
    return msgspec.convert(values, kind, strict=False)


def without_password(url: str) -> str:
    """The URL as it may be shown: the password replaced."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))
