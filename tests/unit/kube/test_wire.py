"""Reading lists and watch lines."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.domain.errors import InvalidInput
from hami.domain.pod import Pod
from hami.kube.errors import ApiError, error_of
from hami.kube.results import Added, Bookmark, Gone, Skipped, Undecodable
from hami.kube.watch import Backoff
from hami.kube.wire import Splitter, decode_line, decode_list


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line and line.strip())), st.integers(min_value=1, max_value=9))
def test_lines_come_out_whole_however_the_stream_is_cut(lines: list[bytes], size: int) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = Splitter()
    found = [line for start in range(0, len(stream), size) for line in splitter.feed(stream[start : start + size])]
    assert found == lines
    assert splitter.incomplete == b""


def test_a_bad_item_is_named_and_left_out() -> None:
    body = (
        b'{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"abc"},"items":['
        b'{"metadata":{"name":"a","namespace":"x"}},{"metadata":{"name":"b","namespace":"x","labels":[]}},{"metadata":7}]}'
    )
    items, meta, bad = decode_list(Pod, body)
    assert [each.metadata.name for each in items] == ["a"]
    assert (meta.resource_version, meta.continue_) == ("7", "abc")
    assert [each.name for each in bad] == ["x/b", "(unreadable)"]
    assert all(isinstance(each, Undecodable) and each.why for each in bad)


def test_an_empty_list_may_be_null() -> None:
    items, _, bad = decode_list(Pod, b'{"metadata":{"resourceVersion":"7"},"items":null}')
    assert (items, bad) == ([], [])


def test_what_is_no_list_is_refused() -> None:
    with pytest.raises(InvalidInput, match="list"):
        decode_list(Pod, b"<html>")


def test_watch_lines() -> None:
    added = decode_line(Pod, b'{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"a","resourceVersion":"5"}}}')
    assert isinstance(added, Added)
    assert added.object.metadata.resource_version == "5"
    assert decode_line(
        Pod, b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"},"spec":{"containers":null}}}'
    ) == Bookmark("9")
    status = b'{"kind":"Status","message":"too old resource version: 1 (467)","reason":"Expired","code":410}'
    gone = b'{"type":"ERROR","object":' + status + b"}"
    assert decode_line(Pod, gone) == Gone("too old resource version: 1 (467)")
    bad = decode_line(
        Pod, b'{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"x","resourceVersion":"5"},"spec":7}}'
    )
    assert isinstance(bad, Skipped)
    assert (bad.name, bad.resource_version) == ("x/a", "5")


def test_other_errors_in_a_stream_are_the_apis_words() -> None:
    with pytest.raises(ApiError, match="RequestWatchProgress") as caught:
        decode_line(
            Pod, b'{"type":"ERROR","object":{"message":"RequestWatchProgress is disabled","reason":"InternalError","code":500}}'
        )
    assert caught.value.code == 500


def test_a_proxys_error_page_is_quoted() -> None:
    error = error_of(502, b"<html>bad gateway</html>")
    assert (error.code, error.message, error.unanswered) == (502, "<html>bad gateway</html>", False)


def test_backoff_doubles_to_its_bound() -> None:
    backoff = Backoff(first=1.0, most=5.0)
    assert [backoff.delay(failures, 1.0) for failures in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.delay(3, 0.0) == 0.0


def test_importing_the_client_does_not_import_kubernetes() -> None:
    slow = "('kubernetes', 'aiohttp', 'pydantic')"
    code = f"import sys, hami.kube.client, hami.kube.watch; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
