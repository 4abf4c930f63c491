"""GET: one object, a list in pages, and watches."""

import base64
import binascii
import time
from collections.abc import AsyncIterator

import anyio
import msgspec

from hami.sim.apiserver import events, table
from hami.sim.apiserver.call import Answer, Call, json_answer
from hami.sim.apiserver.core import Core, full, full_json
from hami.sim.apiserver.errors import ApiRefusal, Obj, gone
from hami.sim.apiserver.selectors import Matches, everything, field_terms, selector
from hami.sim.apiserver.store import Change, Shelf, Stored

_EXPIRED_TOKEN = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_NO_PROGRESS = "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled"


def get(core: Core, call: Call) -> Answer:
    stored = core.find(call.target)
    if table.wants(call.accept) == "Table":
        meta = {"resourceVersion": str(stored.revision)}
        return json_answer(200, table.table(call.target.resource, [stored.obj], meta, core.now()))
    return Answer(200, full_json(call.target.resource, stored))


def _revision(core: Core, text: str, *, of_watch: bool = False) -> int:
    """The resourceVersion a caller names; 0 when it names none."""
    if not text:
        return 0
    if not text.isdecimal():
        message = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise ApiRefusal(500 if of_watch else 400, message, reason="")
    revision = int(text)
    if revision > core.store.revision and not of_watch:
        details = {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }
        now = core.store.revision
        raise ApiRefusal(504, f"Timeout: Too large resource version: {revision}, current: {now}", details=details)
    return revision


class _Token(msgspec.Struct, omit_defaults=False):
    v: str
    rv: int
    start: str


def _token(revision: int, last: Stored) -> str:
    namespace, name = last.key
    start = f"{namespace}/{name}\0" if namespace else f"{name}\0"
    raw = msgspec.json.encode(_Token("meta.k8s.io/v1", revision, start))
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _read_token(text: str) -> _Token:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(raw, type=_Token)
    except (binascii.Error, msgspec.MsgspecError) as error:
        raise ApiRefusal(400, f"invalid continue token: continue key is not valid: {error}") from None


class _Listing:
    """Which objects a list request means, as one revision saw them."""

    def __init__(self, core: Core, call: Call) -> None:
        self._core, self._resource = core, call.target.resource
        self._labels, self._fields = call.query.get("labelSelector", ""), call.query.get("fieldSelector", "")
        self._namespace = call.target.namespace
        self._matches = selector(self._resource, self._labels, self._fields, self._namespace)

    def _key(self, revision: int) -> tuple[object, ...]:
        return (self._resource.store_key, self._namespace, self._labels, self._fields, revision)

    def now(self) -> list[Stored]:
        shelf = self._core.store.shelf(self._resource.store_key)
        if (node := self._node()) is not None:
            among = [stored for _, stored in sorted(shelf.by_node.get(node, {}).items())]
        else:
            among = shelf.in_order()
        return among if self._matches is everything else [each for each in among if self._matches(each.obj)]

    def _node(self) -> str | None:
        """The node name a field selector pins, so that a node's pods are found without looking at all of them."""
        terms = field_terms(self._fields, self._resource.selectable)
        return next((value for path, value, equal in terms if path == "spec.nodeName" and equal and value), None)

    def kept(self, revision: int) -> list[Stored]:
        return self._core.store.snapshot(self._key(revision), self.now)

    def remembered(self, revision: int) -> list[Stored] | None:
        return self._core.store.remembered(self._key(revision))


def list_(core: Core, call: Call) -> Answer:
    asked = _revision(core, call.query.get("resourceVersion", ""))
    limit = int(call.query.get("limit") or 0)
    # A list "from cache" (resourceVersion=0) is given whole: the real server ignores the limit there.
    if call.query.get("resourceVersion") == "0":
        limit = 0
    listing = _Listing(core, call)
    if token := call.query.get("continue", ""):
        return _next_page(core, call, listing, token, limit)
    if call.query.get("resourceVersionMatch") == "Exact" and asked != core.store.revision:
        found = listing.remembered(asked)
        if found is None:
            raise gone("The resourceVersion for the provided list is too old.")
        return _page(core, call, found, asked, limit)
    revision = core.store.revision
    found = listing.kept(revision) if limit else listing.now()
    return _page(core, call, found, revision, limit)


def _next_page(core: Core, call: Call, listing: _Listing, text: str, limit: int) -> Answer:
    token = _read_token(text)
    place = token.start.rstrip("\0").strip("/")
    namespace, _, name = place.rpartition("/")
    found = listing.kept(core.store.revision) if token.rv < 0 else listing.remembered(token.rv)
    if found is None:
        fresh = msgspec.json.encode(_Token(token.v, -1, token.start))
        raise gone(_EXPIRED_TOKEN, continue_token=base64.urlsafe_b64encode(fresh).decode().rstrip("="))
    rest = [each for each in found if each.key > (namespace, name)]
    return _page(core, call, rest, core.store.revision if token.rv < 0 else token.rv, limit)


def _page(core: Core, call: Call, found: list[Stored], revision: int, limit: int) -> Answer:
    shown = found[:limit] if limit else found
    meta: Obj = {"resourceVersion": str(revision)}
    if len(shown) < len(found):
        meta |= {"continue": _token(revision, shown[-1]), "remainingItemCount": len(found) - len(shown)}
    resource = call.target.resource
    match table.wants(call.accept):
        case "Table":
            return json_answer(200, table.table(resource, [each.obj for each in shown], meta, core.now()))
        case "PartialObjectMetadata":
            return json_answer(200, table.partial_list([each.obj for each in shown], meta))
    head = msgspec.json.encode({"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta})
    if resource.group == "events.k8s.io":
        items = [msgspec.json.encode(events.shown(resource, each.obj)) for each in shown]
    else:
        items = [each.json for each in shown]
    return Answer(200, head[:-1] + b',"items":[' + b",".join(items) + b"]}")


class _Lines:
    """Turns changes into the lines of one watch."""

    def __init__(self, core: Core, call: Call) -> None:
        self._core, self._resource = core, call.target.resource
        self._as_table = table.wants(call.accept) == "Table"
        query = call.query
        self._matches: Matches = selector(
            self._resource, query.get("labelSelector", ""), query.get("fieldSelector", ""), call.target.namespace
        )

    def existing(self, shelf: Shelf) -> list[bytes]:
        return [self._line("ADDED", each) for each in shelf.in_order() if self._matches(each.obj)]

    def of(self, change: Change) -> bytes | None:
        was = change.before is not None and self._matches(change.before.obj)
        if change.type == "DELETED":
            return self._line("DELETED", change.after) if was else None
        is_ = self._matches(change.after.obj)
        if is_:
            return self._line("MODIFIED" if was else "ADDED", change.after)
        if was and change.before is not None:
            # It left the selection: the watcher sees its last matching state, deleted, at the new revision.
            meta = {**change.before.obj["metadata"], "resourceVersion": str(change.revision)}
            return self._line("DELETED", Stored({**change.before.obj, "metadata": meta}, change.revision))
        return None

    def _line(self, type_: str, stored: Stored) -> bytes:
        if self._as_table:
            meta = {"resourceVersion": str(stored.revision)}
            body = msgspec.json.encode(table.table(self._resource, [stored.obj], meta, self._core.now()))
        else:
            body = full_json(self._resource, stored)
        return b'{"type":"' + type_.encode() + b'","object":' + body + b"}\n"

    def bookmark(self) -> bytes:
        meta = {"metadata": {"resourceVersion": str(self._core.store.revision)}}
        return b'{"type":"BOOKMARK","object":' + msgspec.json.encode(full(self._resource, meta)) + b"}\n"


def error_line(status: Obj) -> bytes:
    return b'{"type":"ERROR","object":' + msgspec.json.encode(status) + b"}\n"


def watch(core: Core, call: Call) -> Answer:
    """Checks what can be refused with a status code, then streams."""
    revision = _revision(core, call.query.get("resourceVersion", ""), of_watch=True)
    lines = _Lines(core, call)
    return Answer(200, _stream(core, call, lines, revision))


async def _stream(core: Core, call: Call, lines: _Lines, revision: int) -> AsyncIterator[bytes]:
    shelf = core.store.shelf(call.target.resource.store_key)
    if call.query.get("sendInitialEvents") == "true":
        yield error_line(ApiRefusal(500, _NO_PROGRESS).status)
        return
    if revision and revision < shelf.lost_up_to:
        yield error_line(gone(f"too old resource version: {revision} ({shelf.lost_up_to})").status)
        return
    position = shelf.position_after(revision) if revision else shelf.end
    if not revision and (existing := lines.existing(shelf)):
        yield b"".join(existing)
    ends = time.monotonic() + float(call.query.get("timeoutSeconds") or 1800)
    bookmarks = call.query.get("allowWatchBookmarks") == "true"
    next_bookmark = time.monotonic() + core.bookmark_every
    while not core.closing:
        changed = shelf.changed
        if position < shelf.first:
            yield error_line(gone(f"too old resource version: {revision} ({shelf.lost_up_to})").status)
            return
        chunk = [line for change in shelf.read_from(position) if (line := lines.of(change)) is not None]
        position = shelf.end
        if chunk:
            yield b"".join(chunk)
        if (now := time.monotonic()) >= min(next_bookmark, ends):
            if bookmarks and position == shelf.end:
                yield lines.bookmark()
            next_bookmark = now + core.bookmark_every
        if now >= ends:
            return
        with anyio.move_on_after(max(0.0, min(next_bookmark, ends) - now)):
            await changed.wait()
