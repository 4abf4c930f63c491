"""AdmissionReview as the API server sends it, v1 and v1beta1 alike, and the answer in the same version."""

import base64
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from hami.domain.errors import InvalidInput
from hami.domain.pod import ObjectMeta, Pod
from hami.scheduler.wire import UNREADABLE, invalid

VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")


class Who(msgspec.Struct, frozen=True):
    username: str = ""


class Resource(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`object` and `old_object` stay raw until it is known what they are."""

    uid: str
    resource: Resource = Resource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: Who = Who()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = None


class Review(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    api_version: str = VERSIONS[0]
    kind: str = "AdmissionReview"
    request: Request | None = None


class Target(msgspec.Struct, frozen=True):
    name: str = ""


class Binding(msgspec.Struct, frozen=True):
    """The object of a review on `pods/binding`."""

    metadata: ObjectMeta = ObjectMeta()
    target: Target = Target()


_review: Final = msgspec.json.Decoder(Review)
_pod: Final = msgspec.json.Decoder(Pod | None)
_binding: Final = msgspec.json.Decoder(Binding | None)
_encoder: Final = msgspec.json.Encoder()
_uid: Final = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_version: Final = re.compile(rb'"apiVersion"\s*:\s*"(admission\.k8s\.io/v1(?:beta1)?)"')


def decode_review(body: bytes) -> Review:
    """Raises InvalidInput."""
    try:
        review = _review.decode(body)
    except UNREADABLE as error:
        raise invalid(body, error) from error
    if review.api_version not in VERSIONS:
        raise InvalidInput("apiVersion", review.api_version, f"must be one of {', '.join(VERSIONS)}")
    if review.request is None:
        raise InvalidInput("request", None, "is missing")
    return review


def salvaged(body: bytes) -> tuple[str, str] | None:
    """(apiVersion, uid) of a review that could not be decoded as a whole, so that its sender gets a proper answer."""
    uid, version = _uid.search(body), _version.search(body)
    return (version[1].decode(), uid[1].decode()) if uid and version else None


def decode_pod(raw: msgspec.Raw, place: str) -> Pod | None:
    found: Pod | None = _decoded(_pod, raw, place)
    return found


def decode_binding(raw: msgspec.Raw, place: str) -> Binding | None:
    found: Binding | None = _decoded(_binding, raw, place)
    return found


def _decoded(decoder: "msgspec.json.Decoder[Any]", raw: msgspec.Raw, place: str) -> Any:
    try:
        return decoder.decode(raw)
    except UNREADABLE as error:
        raise invalid(bytes(raw), error, place) from error


def allowed(
    version: str, uid: str, *, patch: Sequence[dict[str, object]] = (), message: str = "", warnings: Sequence[str] = ()
) -> bytes:
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if message:
        response["status"] = {"code": 200, "message": message}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encoder.encode(patch)).decode()
    if warnings:
        response["warnings"] = list(warnings)
    return _answer(version, response)


def denied(version: str, uid: str, code: int, message: str) -> bytes:
    return _answer(version, {"uid": uid, "allowed": False, "status": {"code": code, "message": message}})


def _answer(version: str, response: dict[str, Any]) -> bytes:
    return _encoder.encode({"apiVersion": version, "kind": "AdmissionReview", "response": response})
