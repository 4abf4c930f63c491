"""HAMi's flags on `hami scheduler`, its device configuration in `hami config show` and at start."""

from pathlib import Path

import pytest

from hami.cli.exits import Exit
from hami.cli.hamiflags import SPELLINGS, WITHOUT_EFFECT
from tests.support.cli import Hami, Ran, start_hami

BAD = "nvidia:\n  defaultMemory: lots\n"


@pytest.fixture
def hami(capsys: pytest.CaptureFixture[str]) -> Hami:
    return Hami(capsys, "redis://127.0.0.1:1/0")


def scheduler(*arguments: str) -> Ran:
    """A process of its own: starting one sets up logging for good."""
    with start_hami(["--redis-url", "redis://127.0.0.1:1/0", "scheduler", *arguments]) as process:
        out, err = process.communicate(timeout=60)
    return Ran(Exit(process.returncode), out, err)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A device configuration that stops a scheduler before it connects anywhere."""
    file = tmp_path / "device-config.yaml"
    file.write_text(BAD)
    return file


def test_a_bad_device_configuration_ends_the_start_with_the_path_of_the_field(bad: Path) -> None:
    ran = scheduler(f"--device-config-file={bad}")
    assert ran.code == Exit.USAGE
    assert ran.err.strip() == "hami: device-config: nvidia.defaultMemory: 'lots': Expected `int`, got `str`"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http-bind", "everywhere"], "scheduler.http_bind: 'everywhere': needs host:port"),
        (["--http-bind", "127.0.0.1:0", "--metrics-bind", "192.0.2.1:1"], "scheduler.metrics_bind: '192.0.2.1:1': "),
        (
            ["--http-bind", "127.0.0.1:0", "--cert-file", "/absent.crt"],
            "scheduler.key_file: '': certificate and key go together",
        ),
        (
            ["--http-bind", "127.0.0.1:0", "--cert-file", "/absent.crt", "--key-file", "/absent.key"],
            "scheduler.cert_file, scheduler.key_file: '/absent.crt, /absent.key': ",
        ),
        (["--node-policy", "pack"], "scheduler.node_policy (from --node-policy): 'pack'"),
        (["--bind-wait-s", "0"], "scheduler.bind_wait_s (from --bind-wait-s): '0'"),
        (["--device-config-file", "/absent.yaml"], "scheduler.device_config: '/absent.yaml': No such file"),
    ],
)
def test_a_setting_that_cannot_be_used_ends_the_start_by_its_name(tmp_path: Path, arguments: list[str], said: str) -> None:
    kubeconfig = tmp_path / "config"
    cluster = "{name: c, cluster: {server: 'http://127.0.0.1:1'}}"
    context = "{name: x, context: {cluster: c, user: u}}"
    lines = ["apiVersion: v1", "kind: Config", "current-context: x", f"clusters: [{cluster}]", f"contexts: [{context}]"]
    kubeconfig.write_text("\n".join([*lines, "users: [{name: u, user: {}}]", ""]))
    ran = scheduler("--kubeconfig", str(kubeconfig), *arguments)
    assert (ran.code, ran.err.startswith("hami: " + said)) == (Exit.USAGE, True), ran.err


@pytest.mark.parametrize(("key", "where", "value"), [("[1]", "resourceCountName", "[1]"), ("{}", "migProfileAllowlist", "{}")])
def test_the_path_and_the_value_are_those_of_the_field(hami: Hami, tmp_path: Path, key: str, where: str, value: str) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text(f"nvidia:\n  {where}: {key}\n")
    ran = hami("config", "show")
    assert ran.code == Exit.OK
    ran = scheduler("--device-config", str(file))
    assert f"device-config: nvidia.{where}: {value}: " in ran.err


def test_every_flag_of_hami_is_accepted(bad: Path) -> None:
    values = {"node_policy": "spread", "gpu_policy": "binpack", "http_bind": "127.0.0.1:0", "metrics_bind": ":0"}
    spelled = [
        f"{flag}={values.get(name, '')}" for name, flags in SPELLINGS.items() for flag in flags if name != "device_config"
    ]
    without = [flag for flag in WITHOUT_EFFECT if flag.startswith("--")]
    bare = ["--legacy-metrics", "--force-overwrite-default-scheduler"]
    ran = scheduler(*spelled, *without, "-v", "4", *bare, "--device-config-file", str(bad))
    assert "defaultMemory" in ran.err, "the flags were understood, the file was looked at"
    for flag in without:
        assert f"hami: {flag} is accepted and has no effect: " in ran.err


def test_a_flag_without_effect_takes_a_value_or_none(bad: Path) -> None:
    ran = scheduler("--leader-elect=true", "--kube-qps", "5", "--device-config-file", str(bad))
    assert ran.err.count("has no effect") == 2
    assert ran.code == Exit.USAGE
    assert "no such option" in scheduler("--leader-elekt").err.lower()


def test_config_show_tells_where_each_value_of_the_device_configuration_is_from(
    hami: Hami, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text("nvidia:\n  defaultMemory: 2000\n")
    monkeypatch.setenv("HAMI_SCHEDULER_DEVICE_CONFIG", str(file))
    shown = hami("config", "show", "--table", "device_config", "-o", "json").json["device_config"]
    assert shown["nvidia.defaultMemory"] == {"value": 2000, "source": str(file)}
    assert shown["nvidia.resourceCountName"] == {"value": "nvidia.com/gpu", "source": "default"}
