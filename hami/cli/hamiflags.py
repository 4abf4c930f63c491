"""HAMi's own flags on `hami scheduler`, so that a chart's arguments go on working: other spellings, and what has no effect."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("--scheduler-name",),
    "http_bind": ("--http_bind",),
    "metrics_bind": ("--metrics-bind-address",),
    "cert_file": ("--cert_file",),
    "key_file": ("--key_file",),
    "node_policy": ("--node-scheduler-policy",),
    "gpu_policy": ("--gpu-scheduler-policy",),
    "device_config": ("--device-config-file",),
}
"""Setting -> how HAMi spells its flag."""

_CLIENT: Final = "the API client has no such limit"
_LEADER: Final = "every replica decides, none has to lead"
_LOCK: Final = "a node lock is renewed by its holder and runs out by itself; see --lock-ttl-s and --bind-wait-s"
_LOGS: Final = "see --log-level"
_VENDOR: Final = "vendors and their resource names follow from the device configuration"
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "--kube-qps": _CLIENT,
    "--kube-burst": _CLIENT,
    "--kube-timeout": _CLIENT,
    "--leader-elect": _LEADER,
    "--leader-elect-resource-name": _LEADER,
    "--leader-elect-resource-namespace": _LEADER,
    "--node-lock-timeout": _LOCK,
    "--node-lock-retry-timeout": _LOCK,
    "--node-label-selector": "nodes are known by the registration of their agents",
    "--profiling": "there is no profiling endpoint",
    "--debug": _LOGS,
    "-v": _LOGS,
    "--v": _LOGS,
    "--vmodule": _LOGS,
    "--logtostderr": _LOGS,
    "--alsologtostderr": _LOGS,
    "--stderrthreshold": _LOGS,
    "--log_dir": _LOGS,
    "--log_file": _LOGS,
    "--skip_headers": _LOGS,
    "--skip_log_headers": _LOGS,
    "--add_dir_header": _LOGS,
    "--log_backtrace_at": _LOGS,
    "--log_file_max_size": _LOGS,
    "--one_output": _LOGS,
    "--legacy_stderr_threshold_behavior": _LOGS,
    "--enable-ascend": _VENDOR,
    "--enable-iluvatar": _VENDOR,
    "--sgpu-topology-aware": _VENDOR,
    **{
        f"--{vendor}-{what}": _VENDOR
        for vendor, words in {
            "metax": ("name", "vcount", "vcore", "vmemory"),
            "mthreads": ("name", "memory", "cores"),
            "cambricon-mlu": ("name", "memory", "cores"),
            "dcu": ("name", "memory", "cores"),
            "kunlun": ("name", "vcount", "vmemory"),
            "enflame": ("name", "vcount", "percentage"),
        }.items()
        for what in words
    },
}
"""Flag -> why it changes nothing here. Each is accepted with or without a value, and says so once."""


def flags_without_effect(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: takes HAMi's flags that mean nothing here, out of sight of the help."""
    for flag in WITHOUT_EFFECT:
        name = f"unused_{flag.strip('-').replace('-', '_')}" + ("_short" if not flag.startswith("--") else "")
        option = click.option(
            flag, name, default=None, is_flag=False, flag_value="true", hidden=True, expose_value=False, callback=_said(flag)
        )
        function = option(function)
    return function


def _said(flag: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def say(_: click.Context, __: click.Parameter, value: Any) -> None:
        if value is not None:
            click.echo(f"hami: {flag} is accepted and has no effect: {WITHOUT_EFFECT[flag]}", err=True)

    return say
