"""The compose file, the image and the scrape configuration, without Docker: what they name exists and fits together."""

import re
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from hami.cli.main import cli
from hami.nodeagent.backends.scripted import load_script
from tests.support.cli import ROOT

TOP: Final = {"name", "services", "networks", "volumes", "configs", "secrets"}
SERVICE: Final = {
    "build",
    "cap_drop",
    "command",
    "configs",
    "depends_on",
    "entrypoint",
    "environment",
    "healthcheck",
    "image",
    "init",
    "networks",
    "ports",
    "restart",
    "user",
    "volumes",
}
"""Keys of a service that the Compose specification knows and that this file may use."""
CONDITIONS: Final = {"service_started", "service_healthy", "service_completed_successfully"}
RESTARTS: Final = {"no", "always", "on-failure", "unless-stopped"}
PORT: Final = re.compile(r"(?:(\d+\.\d+\.\d+\.\d+):)?(\d+):(\d+)(?:/(?:tcp|udp))?")
DURATION: Final = re.compile(r"(?:\d+(?:ms|s|m|h))+")


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


FILE: Final = compose()
SERVICES: Final[dict[str, dict[str, Any]]] = FILE["services"]
each_service = pytest.mark.parametrize("name", SERVICES)


def dependencies(service: dict[str, Any]) -> dict[str, str]:
    named = service.get("depends_on", {})
    if isinstance(named, list):
        return dict.fromkeys(named, "service_started")
    return {other: rule["condition"] for other, rule in named.items()}


def mounts(service: dict[str, Any]) -> list[tuple[str, str]]:
    return [(parts[0], parts[1]) for parts in (mount.split(":") for mount in service.get("volumes", []))]


# The file


def test_only_keys_of_the_compose_specification_are_used() -> None:
    assert {key for key in FILE if not key.startswith("x-")} <= TOP
    assert {name: set(service) - SERVICE for name, service in SERVICES.items() if set(service) - SERVICE} == {}


@each_service
def test_a_service_has_an_image_with_a_tag_or_a_context_that_exists(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[\w./-]+:[\w.-]+", service["image"])
    assert not service["image"].endswith(":latest")
    if "build" in service:
        context = ROOT / service["build"]["context"]
        assert (context / service["build"]["dockerfile"]).is_file()


@each_service
def test_dependencies_exist_and_can_reach_the_state_waited_for(name: str) -> None:
    for other, condition in dependencies(SERVICES[name]).items():
        assert other in SERVICES
        assert condition in CONDITIONS
        if condition == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        if condition == "service_completed_successfully":
            assert SERVICES[other]["restart"] in {"no", "on-failure"}


def test_dependencies_have_no_cycle() -> None:
    left = {name: set(dependencies(service)) for name, service in SERVICES.items()}
    while left:
        free = {name for name, others in left.items() if not others & left.keys()}
        assert free, f"these wait for each other: {sorted(left)}"
        left = {name: others for name, others in left.items() if name not in free}


def test_volumes_are_declared_and_used() -> None:
    used = {source for service in SERVICES.values() for source, _ in mounts(service)}
    folders = {source for source in used if source.startswith("./")}
    assert used - folders == set(FILE["volumes"])
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


@each_service
def test_mounts_have_absolute_targets(name: str) -> None:
    assert [target for _, target in mounts(SERVICES[name]) if not target.startswith("/")] == []


def test_configs_are_declared_used_and_exist() -> None:
    used = {each["source"] for service in SERVICES.values() for each in service.get("configs", [])}
    assert used == set(FILE["configs"])
    assert [config["file"] for config in FILE["configs"].values() if not (ROOT / config["file"]).is_file()] == []


def test_ports_are_valid_local_and_not_taken_twice() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    found = [PORT.fullmatch(port) for port in published]
    assert all(found), published
    assert {match[1] for match in found if match} == {"127.0.0.1"}, "nothing here has a password: loopback only"
    hosts = [int(match[2]) for match in found if match]
    assert len(set(hosts)) == len(hosts)
    assert all(0 < port < 65536 for port in hosts)


@each_service
def test_restart_and_healthcheck_are_well_formed(name: str) -> None:
    service = SERVICES[name]
    assert service.get("restart", "no") in RESTARTS
    if "healthcheck" in service:
        check = service["healthcheck"]
        assert check["test"][0] in {"CMD", "CMD-SHELL"}
        assert DURATION.fullmatch(check["interval"])
        assert DURATION.fullmatch(check["timeout"])
        assert int(check["retries"]) > 0


def test_redis_keeps_what_it_acknowledged() -> None:
    command = SERVICES["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert ("redis-data", "/data") in mounts(SERVICES["redis"])


# What the services run

OURS: Final = [name for name, service in SERVICES.items() if service["image"].startswith("hami:")]


def parsed(arguments: list[str]) -> click.Context:
    """The verb and its options, parsed by the command line itself but not run."""
    command: click.Command = cli
    context, rest = click.Context(cli, info_name="hami"), list(arguments)
    while isinstance(command, click.Group):
        if command.invoke_without_command and rest[0].startswith("-"):
            break
        word = rest.pop(0)
        found = command.get_command(context, word)
        assert found is not None, f"there is no `hami {word}`"
        command = found
    return command.make_context(command.name, rest, parent=context)


@pytest.mark.parametrize("name", OURS)
def test_the_command_of_a_service_exists_and_takes_these_options(name: str) -> None:
    parsed(SERVICES[name]["command"])


@pytest.mark.parametrize("name", OURS)
def test_settings_by_environment_are_settings(name: str) -> None:
    from hami.config import SETTINGS

    known = {f"HAMI_{table}_{field}".upper() for table, kind in SETTINGS for field in kind.__struct_fields__}
    assert set(SERVICES[name]["environment"]) <= known


@pytest.mark.parametrize("name", OURS)
def test_files_named_in_a_command_are_mounted(name: str) -> None:
    service = SERVICES[name]
    targets = [target for _, target in mounts(service)] + [each["target"] for each in service.get("configs", [])]
    files = [match[1] for argument in service["command"] if (match := re.search(r"=(/[\w./-]+)$", argument))]
    assert [file for file in files if not any(file == t or file.startswith(f"{t}/") for t in targets)] == []


@pytest.mark.parametrize("node", ["a", "b"])
def test_simulated_devices_are_devices(node: str) -> None:
    devices = load_script(ROOT / f"deploy/compose/node-{node}/devices.json")
    assert len({device.uuid for device in devices}) == len(devices) > 0


def test_prometheus_scrapes_services_where_they_listen() -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    for target in (target for job in jobs for group in job["static_configs"] for target in group["targets"]):
        host, port = target.split(":")
        assert any(argument.endswith(f"-bind=0.0.0.0:{port}") for argument in SERVICES[host]["command"]), target


# The image

DOCKERFILE: Final = (ROOT / "deploy/Dockerfile").read_text()


def test_the_image_runs_as_an_ordinary_user() -> None:
    users = re.findall(r"^USER (\d+)", DOCKERFILE, flags=re.MULTILINE)
    assert users
    assert int(users[-1]) >= 1000


def test_everything_copied_into_the_image_exists_and_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ") and "--from" not in line]
    sources = {source.removeprefix("./") for copied in copies for source in copied}
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert sources <= sent


def test_the_image_is_built_from_the_lock_file() -> None:
    assert all("--frozen" in line for line in DOCKERFILE.splitlines() if "uv sync" in line)
    assert Path(ROOT / "uv.lock").is_file()
