"""HAMi's flags, variables and files, as the agent understands them."""

import json
from pathlib import Path
from typing import Any

import pytest

from hami.cli.agent import HAMI_PREFIX, agent_settings, command
from hami.cli.session import Session
from hami.config import AgentSettings
from hami.domain.errors import InvalidInput
from hami.nodeagent.hamifiles import with_hami_files
from hami.nodeagent.hamivars import HAMI, from_variables, with_hami_variables
from hami.nodeagent.settings import listing_settings, node_config_of

SECTION = """
nvidia:
  resourceCountName: nvidia.com/gpu
  deviceSplitCount: 5
  deviceMemoryScaling: 1.5
  libCudaLogLevel: "3"
  defaultMemory: 0
"""


def parsed(*arguments: str, env: dict[str, str] | None = None) -> tuple[AgentSettings, tuple[str, ...]]:
    with command.make_context("agent", list(arguments), obj=None) as context:
        return agent_settings(Session(env or {}), dict(context.params))


@pytest.mark.parametrize(
    ("variables", "field", "value"),
    [
        ({"DEVICE_LIST_STRATEGY": "cdi-cri"}, "device_list_strategy", "cdi-cri"),
        ({"PASS_DEVICE_SPECS": "true"}, "pass_device_specs", True),
        ({"NVIDIA_DEV_ROOT": "/run/dev"}, "dev_root", "/run/dev"),
        ({"CONTAINER_DRIVER_ROOT": "/old", "DRIVER_ROOT_CTR_PATH": "/new"}, "driver_root", "/new"),
        ({"NVIDIA_CTK_PATH": "/bin/ctk"}, "cdi_hook_path", "/bin/ctk"),
        ({"KUBELET_SOCKET": "/k/kubelet.sock"}, "kubelet_dir", "/k"),
        ({"IMEX_CHANNEL_IDS": "[0]"}, "imex_channels", "0"),
        ({"IMEX_CHANNEL_IDS": "[]"}, "imex_channels", ""),
        ({"ENABLE_TOPOLOGY_SCORE": "true"}, "topology_annotation", True),
        ({"HOOK_PATH": "/opt"}, "hook_path", "/opt"),
        ({"HOOK_PATH": "/opt", "HAMI_AGENT_HOOK_PATH": "/ours"}, "hook_path", "/ours"),
        ({"MIG_STRATEGY": "mixed"}, "mig_strategy", "mixed"),
    ],
)
def test_a_variable_of_hami_sets_our_field_and_ours_wins(variables: dict[str, str], field: str, value: object) -> None:
    settings, warnings = parsed(env={"NODE_NAME": "n1", **variables})
    assert (getattr(settings, field), warnings) == (value, ())


@pytest.mark.parametrize(
    "variable", ["DEVICE_SPLIT_COUNT", "DEVICE_MEMORY_SCALING", "DEVICE_CORES_SCALING", "DISABLE_CORE_LIMIT", "NodeName"]
)
def test_what_has_no_effect_in_hami_is_named_and_has_none(variable: str) -> None:
    settings, warnings = parsed(env={"NODE_NAME": "n1", variable: "7"})
    assert settings == parsed(env={"NODE_NAME": "n1"})[0]
    assert [each.split()[0] for each in warnings] == [variable]


@pytest.mark.parametrize(
    ("variables", "field"),
    [
        ({"MIG_STRATEGY": "double"}, "agent.mig_strategy"),
        ({"DEVICE_DISCOVERY_STRATEGY": "tegra"}, "DEVICE_DISCOVERY_STRATEGY"),
        ({"KUBELET_SOCKET": ""}, "KUBELET_SOCKET"),
        ({"PASS_DEVICE_SPECS": "perhaps"}, "agent.pass_device_specs"),
        ({"IMEX_CHANNEL_IDS": "[0,1]"}, "agent.imex_channels"),
        ({"DEVICE_ID_STRATEGY": "serial"}, "agent.device_id_strategy"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(variables: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parsed(env={"NODE_NAME": "n1", **variables})
    assert field in refused.value.field


def test_flags_of_hami_are_taken_with_and_without_a_value() -> None:
    settings, warnings = parsed(
        "--pass-device-specs", "--gdrcopy-enabled", "--mofed-enabled=false", "--nvidia-ctk-path", "/x", "--device-split-count=3"
    )
    assert (settings.pass_device_specs, settings.gdrcopy, settings.mofed, settings.cdi_hook_path) == (True, True, False, "/x")
    assert (settings.split_count, len(warnings)) == (10, 1)


def test_every_flag_of_hami_is_an_option() -> None:
    known = {option for param in command.params for option in param.opts}
    wanted = {f"--{flag}" if len(flag) > 1 else f"-{flag}" for each in HAMI for flag in each.flags}
    assert wanted <= known
    hidden = [each for each in command.params if getattr(each, "hidden", False)]
    assert all(str(each.name).startswith(HAMI_PREFIX) for each in hidden)


def test_every_field_named_for_hami_is_ours() -> None:
    assert {each.field for each in HAMI} - {""} <= set(AgentSettings.__struct_fields__)
    assert from_variables({}).values == {}
    assert with_hami_variables({"PATH": "/bin"}) == ({"PATH": "/bin"}, ())


@pytest.mark.parametrize("strategy", ["", "envvar,magic", " , "])
def test_an_unknown_strategy_is_refused(strategy: str) -> None:
    with pytest.raises(InvalidInput, match=r"agent\.device_list_strategy"):
        listing_settings(AgentSettings(node_name="n1", device_list_strategy=strategy))


# Files


def with_files(folder: Path, section: str = "", entries: Any = None, **given: Any) -> AgentSettings:
    files: dict[str, Any] = {}
    if section:
        (folder / "device-config.yaml").write_text(section)
        files["device_config"] = str(folder / "device-config.yaml")
    if entries is not None:
        (folder / "config.json").write_text(entries if isinstance(entries, str) else json.dumps({"nodeconfig": entries}))
        files["node_config"] = str(folder / "config.json")
    settings = AgentSettings(**{"node_name": "n1", "node_config": str(folder / "none"), **files, **given})
    return with_hami_files(settings, dict.fromkeys((*files, *given), "flag"))


def test_mode_and_profiles_of_mig_come_from_hamis_files(tmp_path: Path) -> None:
    allowed = "{models: [A100, A30], profiles: [1g.10gb, 2g.20gb]}, {models: [H100], profiles: [1g.10gb]}"
    section = f"nvidia: {{migProfileAllowlist: [{allowed}]}}"
    settings = with_files(tmp_path, section, [{"name": "n1", "operatingmode": "mig"}])
    assert (settings.mode, settings.mig_profiles) == ("mig", "A100|A30=1g.10gb,2g.20gb;H100=1g.10gb")
    assert [len(rule.profiles) for rule in node_config_of(settings).mig_profiles] == [2, 1]


def test_the_clusters_section_fills_what_is_set_nowhere_else(tmp_path: Path) -> None:
    settings = with_files(tmp_path, SECTION, split_count=7)
    assert (settings.split_count, settings.memory_scaling, settings.library_log_level) == (7, 1.5, "3")
    assert settings.core_scaling == 1.0


def test_the_nodes_entry_wins_and_later_entries_win_over_earlier(tmp_path: Path) -> None:
    entries = [
        {"name": "n1", "devicesplitcount": 20, "filterdevices": {"uuid": ["GPU-x"], "index": [1, 2]}},
        {"name": "other", "devicesplitcount": 99},
        {"name": "n1", "devicememoryscaling": 2, "operatingmode": "mps", "migstrategy": "mixed", "libcudaloglevel": 4},
    ]
    settings = with_files(tmp_path, SECTION, entries)
    assert (settings.split_count, settings.memory_scaling, settings.mode) == (20, 2.0, "mps")
    assert (settings.exclude_uuids, settings.exclude_indexes, settings.library_log_level) == ("GPU-x", "1,2", "4")


def test_a_node_file_that_nobody_named_may_be_missing(tmp_path: Path) -> None:
    assert with_files(tmp_path).split_count == 10
    with pytest.raises(InvalidInput, match=r"agent\.node_config"):
        with_files(tmp_path, node_config=str(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("section", "entries", "words"),
    [
        ("nvidia: {deviceSplitCount: many}", None, "nvidia.deviceSplitCount"),
        ("nvidia: {deviceSplitCount: 0}", None, "nvidia.deviceSplitCount"),
        ("[", None, "agent.device_config"),
        ("- a", None, "agent.device_config"),
        ("version: v2\nnvidia: {deviceSplitCount: 1}", None, "version"),
        ("", "{", "text"),
        ("", [{"name": "n1", "devicesplitcount": "many"}], "$.nodeconfig[0].devicesplitcount"),
        ("", [{"name": "n1"}, {"name": "n1", "devicesplitcount": 0}], "nodeconfig[1].devicesplitcount"),
        ("", [{"name": "n1", "operatingmode": "passthrough"}], "nodeconfig[0].operatingmode"),
        ("", [{"devicesplitcount": 1}], "$.nodeconfig[0]"),
    ],
)
def test_a_bad_value_is_named_with_its_file_and_key(tmp_path: Path, section: str, entries: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        with_files(tmp_path, section, entries)
    assert words in f"{refused.value.field} {refused.value.why}"
