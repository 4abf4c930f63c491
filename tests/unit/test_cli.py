"""The command line without a store: help, options, settings, errors."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hami.cli.exits import MEANING, Exit
from hami.cli.lazy import Entry, LazyGroup
from hami.cli.main import VERBS, cli, run
from hami.config import SETTINGS
from tests.support.cli import ROOT, Hami

HEAVY = ("redis", "grpc", "kubernetes", "numpy", "pynvml", "starlette", "rich", "structlog")


@pytest.fixture
def hami(capsys: pytest.CaptureFixture[str]) -> Hami:
    return Hami(capsys, "redis://127.0.0.1:1/0")


# Start-up


def probe(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)


def test_help_imports_no_client_library() -> None:
    code = f"""
import sys
from hami.cli.main import run
assert run(["--help"]) == 0
print("FOUND", [name for name in {HEAVY!r} if name in sys.modules])
"""
    assert probe(code).stdout.splitlines()[-1] == "FOUND []"


@pytest.mark.parametrize("arguments", [["version"], ["config", "show"], ["state", "--help"], ["completion", "bash"]])
def test_verbs_that_ask_no_store_import_no_client_library(arguments: list[str]) -> None:
    code = f"""
import sys
from hami.cli.main import run
assert run({arguments!r}) == 0
print("FOUND", [name for name in ("redis", "grpc", "kubernetes", "pynvml") if name in sys.modules])
"""
    assert probe(code).stdout.splitlines()[-1] == "FOUND []"


def cpu_seconds(code: str) -> float:
    """Processor time of the cheapest of several runs: what the work costs, whatever else the machine does meanwhile."""
    best = 60.0
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return best


def test_help_is_fast() -> None:
    """The goal is 150 ms; the limit is twice that, since a busy machine shares caches. A client library costs more."""
    bare = cpu_seconds("pass")
    assert cpu_seconds("from hami.cli.main import run; run(['--help'])") - bare < 0.3


# Verbs and options


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_in_the_table_has_help(hami: Hami, name: str) -> None:
    ran = hami(name, "--help")
    assert ran.code == Exit.OK
    assert ran.out.startswith(f"Usage: hami {name}")
    assert VERBS[name].summary in hami("--help").out


def test_a_verb_is_registered_by_one_line_in_a_table() -> None:
    group = LazyGroup("g", table={"v": Entry("hami.cli.version", "What it says in the list.")})
    command = group.get_command(cli.make_context("g", [], resilient_parsing=True), "v")
    assert command is not None
    assert command.short_help == "What it says in the list."


@pytest.mark.parametrize("arguments", ["--output json version", "version --output json", "version -o json"])
def test_common_options_stand_before_or_after_the_verb(hami: Hami, arguments: str) -> None:
    assert set(hami(*arguments.split()).json) >= {"hami", "python", "redis"}


@pytest.mark.parametrize(("verb", "table"), [("scheduler", "scheduler"), ("agent", "agent")])
def test_every_setting_is_an_option_of_its_process(hami: Hami, verb: str, table: str) -> None:
    text = hami(verb, "--help").out
    kind = dict(SETTINGS)[table]
    missing = [name for name in kind.__struct_fields__ if f"--{name}".replace("_", "-") not in text]
    assert missing == []
    assert "--redis-durability" in text


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_name_the_command(hami: Hami, shell: str) -> None:
    assert "_HAMI_COMPLETE" in hami("completion", shell).out


def test_completion_offers_verbs_without_importing_them() -> None:
    code = """
import sys
from click.shell_completion import BashComplete
from hami.cli.main import cli
found = [item.value for item in BashComplete(cli, {}, "hami", "_HAMI_COMPLETE").get_completions([], "st")]
print(found, "hami.cli.state" in sys.modules)
"""
    assert probe(code).stdout.strip() == "['state'] False"


# Settings


def test_config_show_names_the_source_of_every_value(hami: Hami, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hami.toml"
    file.write_text('[redis]\npartition = "blue"\n[scheduler]\nname = "gpu-scheduler"\n')
    monkeypatch.setenv("HAMI_SCHEDULER_LOCK_TTL_S", "7")
    monkeypatch.setenv("NODE_NAME", "node-1")
    shown = hami("config", "show", "--config", str(file), "-o", "json").json
    assert shown["redis"]["partition"] == {"value": "blue", "source": str(file)}
    assert shown["redis"]["url"] == {"value": "redis://127.0.0.1:1/0", "source": "--redis-url"}
    assert shown["redis"]["block_s"] == {"value": 2.0, "source": "default"}
    assert shown["scheduler"]["name"] == {"value": "gpu-scheduler", "source": str(file)}
    assert shown["scheduler"]["lock_ttl_s"] == {"value": 7.0, "source": "HAMI_SCHEDULER_LOCK_TTL_S"}
    assert shown["agent"]["node_name"]["value"] == "node-1"


def test_config_show_hides_passwords(hami: Hami, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAMI_AGENT_SIDECAR_URL", "redis://user:hunter2@127.0.0.1/0")
    ran = hami("config", "show", "--redis-url", "redis://:hunter2@127.0.0.1:1/0")
    assert "hunter2" not in ran.out
    assert "redis://user:***@127.0.0.1/0" in ran.out
    assert "hunter2" not in hami("state", "--redis-url", "redis://:hunter2@127.0.0.1:1/0").err


# Errors


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["stat"], Exit.USAGE, "No such command 'stat'"),
        (["state", "--output", "yaml"], Exit.USAGE, "'yaml' is not one of"),
        (["agent", "--split-count", "none"], Exit.USAGE, "agent.split_count (from --split-count): 'none'"),
        (["scheduler", "--redis-block-s", "99"], Exit.USAGE, "redis.block_s (from --redis-block-s)"),
        (["config", "show", "--config", "/nonexistent.toml"], Exit.USAGE, "/nonexistent.toml"),
        (["events", "tail", "--type", "allocation.vanished"], Exit.USAGE, "there are allocation.reserved"),
        (["audit", "pod", ""], Exit.USAGE, "pod: '': must not be empty: give NAMESPACE/NAME or the pod's uid"),
        (["audit", "device", " "], Exit.USAGE, "device: ' ': must not be empty"),
        (["audit", "node", ""], Exit.USAGE, "node: '': must not be empty"),
        (["explain", "pod", ""], Exit.USAGE, "pod: '': must not be empty"),
        (["explain", "placement", ""], Exit.USAGE, "reservation: '': must not be empty"),
        (["device", "cordon", "", "--reason", "x"], Exit.USAGE, "device: '': must not be empty"),
        (["state"], Exit.STORE, "redis://127.0.0.1:1/0 cannot be reached"),
        (["state", "--redis-url", "carrier-pigeon://x"], Exit.USAGE, "redis.url"),
    ],
)
def test_an_error_is_one_line_and_a_code(hami: Hami, arguments: list[str], code: Exit, said: str) -> None:
    ran = hami(*arguments)
    assert ran.code == code
    assert ran.err.startswith("hami: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err


@pytest.mark.parametrize("url", ["reds://:secret@host/0", "redis://:secret@host:port/0"])
def test_a_malformed_url_is_shown_without_its_password(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert run(["--redis-url", url, "state"]) == Exit.USAGE
    said = capsys.readouterr().err
    assert said.startswith("hami: redis.url: ")
    assert "secret" not in said


def test_a_missing_choice_is_one_line_too(hami: Hami) -> None:
    assert hami("completion").err.count("\n") == 1


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANING) == set(Exit)


def test_without_arguments_the_help_is_shown(hami: Hami, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == Exit.USAGE
    assert "Commands:" in capsys.readouterr().err
