"""Segments on disk: what they hold, when they count, what a death at any step leaves."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hami.domain.errors import ArchiveBroken
from hami.events.archive.folder import ArchiveFolder
from hami.events.archive.manifest import Manifest, check_follows, entry_of, line_of, packed, unpacked
from hami.events.archive.verify import Checker, check_folder
from hami.events.codec import Place, encode_envelope, encode_place
from hami.events.retention import RawEntry
from tests.support.archiving import DyingDisk, Killed
from tests.support.drafts import sealed as an_envelope

A_LIFE = 6
"""Steps of sealing one segment: write, replace, write, claim, remove; and none left to die in."""


def entries(first: int, last: int) -> list[RawEntry]:
    return [
        RawEntry(f"{1000 + g}-0", encode_envelope(an_envelope(g)), encode_place(Place(g, {"node/n1": g})))
        for g in range(first, last + 1)
    ]


def filled(path: Path, *ends: int) -> list[Manifest]:
    folder, previous, first = ArchiveFolder(path), None, 1
    for last in ends:
        previous = folder.seal(entries(first, last), incarnation="A", previous=previous)
        first = last + 1
    return folder.manifests()


# Lines


@pytest.mark.parametrize(
    "raw",
    [
        entries(7, 7)[0],
        RawEntry("5-1", b"no json", b'{"g":1,"v":{}}'),
        RawEntry("5-1", b'{"a":\n1}', b'{"g":1,"v":{}}'),
        RawEntry("5-1", b"", b"\xff\x00"),
        RawEntry("5-1", b'{"u":"\\u2028 \xe2\x80\xa8 \\n"}', b' {"g":1,"v":{}}'),
    ],
    ids=["usual", "no json", "two lines", "empty and binary", "separators"],
)
def test_a_line_gives_back_the_bytes_that_went_in(raw: RawEntry) -> None:
    line = line_of(raw)
    assert line.count(b"\n") == 1
    assert json.loads(line)["entry"] == raw.entry
    assert entry_of(line) == raw
    assert unpacked(packed([raw, raw]), "s") == [raw, raw]


def test_a_usual_line_can_be_read_with_jq() -> None:
    line = json.loads(line_of(entries(7, 7)[0]))
    assert (line["p"], line["d"]["id"]) == ({"g": 7, "v": {"node/n1": 7}}, "p/1/7")


# Sealing


def test_segments_follow_each_other_and_say_what_they_hold(tmp_path: Path) -> None:
    first, second = filled(tmp_path, 3, 5)
    assert (first.first.g, first.last.g, first.count, first.previous, first.incarnation) == (1, 3, 3, "", "A")
    assert (second.first.g, second.last.g, second.previous) == (4, 5, first.sha256)
    folder = ArchiveFolder(tmp_path)
    assert folder.last() == second
    assert list(folder.entries("0-0")) == entries(1, 5)
    assert list(folder.entries("1002-0")) == entries(3, 5)
    assert (tmp_path / first.segment).read_bytes() == packed(entries(1, 3))
    assert len(gzip.decompress((tmp_path / second.segment).read_bytes()).splitlines()) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        entries(5, 6),
        entries(3, 4),
        [*entries(4, 4), *entries(6, 6)],
        [*entries(4, 4), entries(5, 5)[0]._replace(entry="1004-0")],
    ],
    ids=["gap before", "overlap", "gap inside", "id does not grow"],
)
def test_what_does_not_follow_is_not_sealed(tmp_path: Path, wrong: Sequence[RawEntry]) -> None:
    (first,) = filled(tmp_path, 3)
    with pytest.raises(ArchiveBroken, match="the log goes on with g"):
        ArchiveFolder(tmp_path).seal(wrong, incarnation="A", previous=first)
    assert ArchiveFolder(tmp_path).manifests() == [first]


@pytest.mark.parametrize("steps", range(A_LIFE))
def test_a_death_at_any_step_leaves_a_whole_segment_or_none(tmp_path: Path, steps: int) -> None:
    (first,) = filled(tmp_path, 3)
    disk = DyingDisk(steps)
    died = False
    try:
        ArchiveFolder(tmp_path, disk).seal(entries(4, 6), incarnation="A", previous=first)
    except Killed:
        died = True
    assert died == (steps < A_LIFE - 1), disk.done
    # What is there now is sound, whatever was cut off.
    folder = ArchiveFolder(tmp_path)
    whole = steps >= 4
    assert [each.last.g for each in folder.manifests()] == ([3, 6] if whole else [3])
    assert check_folder(folder, Checker())[1] == folder.manifests()
    # The next life goes on: it may even seal more at that place.
    folder.sweep()
    if not whole:
        folder.seal(entries(4, 7), incarnation="A", previous=folder.last())
    assert [each.last.g for each in folder.manifests()] == ([3, 6] if whole else [3, 7])
    named = {each.segment for each in folder.manifests()}
    assert {each.name for each in tmp_path.glob("*.gz")} == named
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_of_two_archivers_at_one_place_one_wins_and_nothing_is_mixed(tmp_path: Path) -> None:
    (first,) = filled(tmp_path, 3)
    won = ArchiveFolder(tmp_path).seal(entries(4, 6), incarnation="A", previous=first)
    with pytest.raises(ArchiveBroken, match="another archiver"):
        ArchiveFolder(tmp_path).seal(entries(4, 9), incarnation="A", previous=first)
    folder = ArchiveFolder(tmp_path)
    assert folder.manifests() == [first, won]
    assert folder.entries_of(won) == entries(4, 6)


def test_sweeping_leaves_every_segment_that_may_be_evidence(tmp_path: Path) -> None:
    manifests = filled(tmp_path, 3, 5, 7)
    (tmp_path / "000000000004.json").unlink()
    assert ArchiveFolder(tmp_path).sweep() == []
    assert (tmp_path / manifests[1].segment).exists()


# What is not as it was written


def test_a_changed_file_is_told_from_the_sealed_one(tmp_path: Path) -> None:
    first, second = filled(tmp_path, 3, 5)
    file = tmp_path / first.segment
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ArchiveBroken, match=f"segment {first.segment} has sha256"):
            ArchiveFolder(tmp_path).entries_of(first)
    file.unlink()
    with pytest.raises(ArchiveBroken, match=f"segment {first.segment} .* is missing"):
        ArchiveFolder(tmp_path).check_file(first)
    ArchiveFolder(tmp_path).check_file(second)


def test_a_manifest_that_is_cut_off_or_of_the_future_is_no_manifest(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    name = tmp_path / "000000000001.json"
    text = name.read_text()
    for changed, why in ((text[:40], "cannot be read"), (text.replace('"format": 1', '"format": 2'), "has format 2")):
        name.write_text(changed)
        with pytest.raises(ArchiveBroken, match=why):
            ArchiveFolder(tmp_path).manifests()


def test_segments_out_of_line_are_named(tmp_path: Path) -> None:
    first, second, third = filled(tmp_path, 3, 5, 7)
    check_follows(first, None)
    check_follows(second, first)
    for segment, before, why in (
        (second, None, "which is missing"),
        (third, first, "after g 3 the archive goes on with g 6"),
        (first, first, "goes on with g 1"),
    ):
        with pytest.raises(ArchiveBroken, match=why):
            check_follows(segment, before)


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path / "none")
    assert (folder.manifests(), folder.last(), list(folder.entries("0-0"))) == ([], None, [])
