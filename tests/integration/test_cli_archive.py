"""`hami archive`, `hami audit verify` and `--archive`, as they are called."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from hami.cli.exits import Exit
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer
from hami.events.redis.store import RedisStore
from hami.projections.boot import FOLD
from hami.projections.checkpoint import SCHEMA, encode_state
from hami.projections.timetravel import state_at
from tests.integration.test_cli_store import story, write
from tests.support.archiving import incarnation_of
from tests.support.cli import Hami, start_hami
from tests.support.drafts import lost
from tests.support.waiting import wait_until

AT_ONCE = ("--once", "--segment-s=0", "--settle-s=0", "--keep-hours=0", "--segment-events=3")


async def save_checkpoint(url: str, g: int) -> None:
    async with Client(url) as client:
        store = RedisStore(client)
        incarnation = await incarnation_of(store)
        state = await state_at(store.log, store.checkpoints, incarnation=incarnation, g=g)
        await store.checkpoints.save(FOLD, state.position, incarnation, SCHEMA, encode_state(state))


async def change(url: str, *command: str | bytes) -> None:
    async with Client(url) as client:
        await client.command.call(*command)


async def write_more(url: str, count: int) -> None:
    await write(url, [lost() for _ in range(count)], init=False)


@pytest.fixture
def url(valkey_server: EmbeddedServer) -> str:
    anyio.run(write, valkey_server.url, story())
    return valkey_server.url


@pytest.fixture
def hami(capsys: pytest.CaptureFixture[str], url: str) -> Hami:
    return Hami(capsys, url)


@pytest.fixture
def folder(hami: Hami, url: str, tmp_path: Path) -> str:
    """Archived, and trimmed below g 6."""
    anyio.run(save_checkpoint, url, 6)
    folder = str(tmp_path / "archive")
    assert hami("archive", *AT_ONCE, "--dir", folder).code == Exit.OK
    return folder


def segments(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.jsonl.gz"))


# The past


def test_the_past_is_told_from_the_archive_and_refused_without(hami: Hami, folder: str) -> None:
    for verb in (
        ("state", "--at", "g:3"),
        ("events", "show", "g:2"),
        ("events", "show", "test/1/1"),
        ("events", "tail", "--no-follow", "--since", "g:1"),
    ):
        refused = hami(*verb)
        assert (refused.code, refused.out) == (Exit.FAILED, ""), verb
        assert refused.err.startswith("hami: history begins at g:6 ("), refused.err
        assert refused.err.count("\n") == 1
        assert hami(*verb, "--archive", folder).code == Exit.OK, verb
    assert [each["type"] for each in hami("audit", "pod", "u1", "--archive", folder, "-o", "json").json["events"]] == [
        "hami.placement.refused",
        "hami.allocation.reserved",
        "hami.allocation.bound",
        "hami.allocation.released",
    ]
    assert "GPU-a" in hami("state", "--at", "g:4", "--archive", folder).out
    assert hami("state").code == Exit.OK
    assert hami("locks").code == Exit.OK


def test_a_story_whose_beginning_is_gone_is_told_as_far_as_it_is_known(hami: Hami, folder: str) -> None:
    for verb, unknown in ((("audit", "pod"), "team-a/train"), (("audit", "node"), "n0"), (("explain", "pod"), "team-a/train")):
        ran = hami(*verb, unknown)
        assert (ran.code, ran.out) == (Exit.NOT_FOUND, "")
        assert ran.err.startswith("hami: history begins at g:6 ("), ran.err
    ran = hami("audit", "node", "n1", "-o", "json")
    assert (ran.code, ran.json["history_begins_g"]) == (Exit.OK, 6)
    assert [each["g"] for each in ran.json["events"]] == [6, 7, 8]
    assert ran.err.startswith("hami: history begins at g:6 (")
    whole = hami("audit", "node", "n1", "--archive", folder, "-o", "json")
    assert (whole.json["history_begins_g"], len(whole.json["events"]), whole.err) == (1, 6, "")
    assert hami("explain", "pod", "team-a/train", "--archive", folder).code == Exit.OK


def test_the_archive_of_the_settings_is_used_where_it_is(
    hami: Hami, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAMI_ARCHIVE_DIR", folder)
    assert hami("audit", "pod", "u1").code == Exit.OK
    monkeypatch.setenv("HAMI_ARCHIVE_DIR", str(tmp_path / "elsewhere"))
    assert "history begins at g:6" in hami("audit", "pod", "u1").err
    missing = hami("audit", "pod", "u1", "--archive", str(tmp_path / "elsewhere"))
    assert (missing.code, "--archive" in missing.err) == (Exit.USAGE, True)


def test_archive_without_a_folder_says_which_setting(hami: Hami) -> None:
    ran = hami("archive", "--once")
    assert (ran.code, "archive.dir" in ran.err) == (Exit.USAGE, True)


# Verify


def test_a_whole_history_passes_with_and_without_store_and_archive(hami: Hami, folder: str) -> None:
    ran = hami("audit", "verify", "--archive", folder)
    assert (ran.code, ran.out.startswith("g:1 to g:")) == (Exit.OK, True)
    offline = hami("audit", "verify", "--archive", folder, "--offline", "-o", "json").json
    assert (offline["wrong"], offline["first_g"], offline["segments"]) == ("", 1, len(segments(folder)))
    kept = hami("audit", "verify")
    assert (kept.code, "history begins at g:6" in kept.out) == (Exit.OK, True)
    assert hami("audit", "verify", "--offline").code == Exit.USAGE


def flip(folder: str, _url: str) -> None:
    file = segments(folder)[1]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def lose_file(folder: str, _url: str) -> None:
    segments(folder)[1].unlink()


def lose_segment(folder: str, _url: str) -> None:
    segments(folder)[1].unlink()
    sorted(Path(folder).glob("*.json"))[1].unlink()


def lose_first(folder: str, _url: str) -> None:
    min(Path(folder).glob("*.json")).unlink()


def other_order(folder: str, _url: str) -> None:
    manifest = sorted(Path(folder).glob("*.json"))[1]
    manifest.write_text(manifest.read_text().replace('"previous": "', '"previous": "0'))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (flip, "has sha256"),
        (lose_file, "is missing"),
        (lose_segment, "after g 3 the archive goes on with g 7: a segment is missing"),
        (lose_first, "follows another one, which is missing"),
        (other_order, "names another segment before it"),
    ],
)
@pytest.mark.parametrize("offline", [True, False])
def test_a_spoilt_archive_fails_with_its_first_fault(
    hami: Hami, folder: str, url: str, spoil: Callable[[str, str], None], says: str, offline: bool
) -> None:
    spoil(folder, url)
    ran = hami("audit", "verify", "--archive", folder, *(["--offline"] if offline else []))
    assert (ran.code, ran.out) == (Exit.FAILED, "")
    assert ran.err.startswith("hami: ")
    assert says in ran.err
    assert json.loads(hami("audit", "verify", "--archive", folder, "-o", "json").out)["wrong"] in ran.err


def test_a_whole_segment_put_in_place_of_another_is_noticed(hami: Hami, folder: str, url: str, tmp_path: Path) -> None:
    """Hashes and order of the forgery fit each other; the log remembers what was sealed."""
    from hami.events.archive.folder import ArchiveFolder

    forged, previous = ArchiveFolder(tmp_path / "forged"), None
    (tmp_path / "forged").mkdir()
    for manifest in ArchiveFolder(Path(folder)).manifests():
        entries = ArchiveFolder(Path(folder)).entries_of(manifest)
        if manifest.first.g == 1:
            entries[0] = entries[0]._replace(envelope=entries[0].envelope.replace(b'"node":""', b'"node":"x"'))
        previous = forged.seal(entries, incarnation=manifest.incarnation, previous=previous)
    assert hami("audit", "verify", "--archive", folder).code == Exit.OK
    for options in ((), ("--offline",)):
        ran = hami("audit", "verify", "--archive", str(tmp_path / "forged"), *options)
        assert ran.code == Exit.FAILED
        assert "where the log says that" in ran.err


def test_a_gap_and_a_changed_entry_of_the_log_are_found(hami: Hami, folder: str, url: str) -> None:
    anyio.run(write_more, url, 3)
    shown = hami("events", "tail", "--since", "g:6", "--no-follow", "-o", "json").lines
    newest = shown[-2]["entry"]
    anyio.run(change, url, "XDEL", "hami:{p0}:log", newest)
    gap = hami("audit", "verify", "--archive", folder)
    assert (gap.code, "entries between are missing" in gap.err) == (Exit.FAILED, True)
    assert hami("audit", "verify").code == Exit.FAILED


def test_an_entry_that_log_and_archive_hold_differently_is_found(hami: Hami, folder: str, url: str) -> None:
    second = hami("events", "tail", "--since", "g:6", "--no-follow", "-o", "json").lines[1]["entry"]
    anyio.run(change, url, "XDEL", "hami:{p0}:log", second)
    ran = hami("audit", "verify", "--archive", folder)
    assert (ran.code, "log and archive do not hold the same" in ran.err) == (Exit.FAILED, True)


# The process


def test_killed_again_and_again_it_seals_everything_once(hami: Hami, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    env_options = (
        "--segment-s=0",
        "--settle-s=0",
        "--segment-events=5",
        "--poll-s=0.01",
        "--lease-ttl-s=0.3",
        "--keep-hours=0",
    )
    command = ("--redis-url", url, "archive", "--dir", str(folder), *env_options)
    for round_ in range(4):
        anyio.run(write_more, url, 40)
        before = len(list(folder.glob("*.json")))
        process = start_hami(command)
        try:
            wait(partial(has_more_than, folder, before + round_), "more segments than before")
        finally:
            process.kill()
            process.communicate()
    anyio.run(save_checkpoint, url, 100)
    wait_for_lease(hami, folder)
    ran = hami("audit", "verify", "--archive", str(folder), "-o", "json").json
    assert (ran["wrong"], ran["first_g"]) == ("", 1)
    assert ran["last_g"] >= 160
    assert "history begins at g:100" in hami("audit", "verify").out


def has_more_than(folder: Path, count: int) -> bool:
    return len(list(folder.glob("*.json"))) > count


def wait_for_lease(hami: Hami, folder: Path) -> None:
    """The dead process's lease runs out by itself."""
    until = time.monotonic() + 10
    while hami("archive", *AT_ONCE, "--dir", str(folder)).code != Exit.OK:
        assert time.monotonic() < until


def test_it_runs_says_what_it_does_and_stops_when_told(hami: Hami, url: str, tmp_path: Path) -> None:
    options = ("--segment-s=0", "--settle-s=0", "--poll-s=0.05", "--metrics-bind=127.0.0.1:0")
    process = start_hami(("--redis-url", url, "archive", "--dir", str(tmp_path), *options))
    try:
        assert process.stderr is not None
        listening = json.loads(process.stderr.readline())
        metrics = listening["url"] + "/metrics"
        wait(lambda: "hami_archive_archived_g 8.0" in fetch(metrics), "all is sealed")
        wait(lambda: 'hami_archive_pinned{by="no checkpoint cluster"} 1.0' in fetch(metrics), "why nothing is trimmed")
        assert "hami_archive_active 1.0" in fetch(metrics)
        wait(partial(is_ready, listening["url"]), "ready after its first round")
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert hami("audit", "verify", "--archive", str(tmp_path)).code == Exit.OK


def wait(predicate: Callable[[], bool], description: str) -> None:
    async def waiting() -> None:
        await wait_until(predicate, description, timeout=30)

    anyio.run(waiting)


def is_ready(url: str) -> bool:
    try:
        return json.loads(fetch(url + "/readyz"))["ready"] is True
    except urllib.error.HTTPError as error:
        error.close()
        return False


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())
