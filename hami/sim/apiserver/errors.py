"""Refusals as the API server words them. `ApiRefusal` ends a request; its body is a `Status` object."""

from typing import Any

Obj = dict[str, Any]

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class ApiRefusal(Exception):  # noqa: N818 - a refusal is an answer of this server, not a fault of it
    """The request is answered with a `Status` of this code."""

    def __init__(
        self, code: int, message: str, *, reason: str | None = None, details: Obj | None = None, meta: Obj | None = None
    ) -> None:
        self.code, self.message, self.details, self.meta = code, message, details, meta or {}
        self.reason = _REASONS.get(code) if reason is None else reason
        super().__init__(message)

    @property
    def status(self) -> Obj:
        body: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": self.meta, "status": "Failure", "message": self.message}
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        return body | {"code": self.code}


class Cause:
    """One field's fault, as it stands in `details.causes`."""

    def __init__(self, field: str, message: str, reason: str = "FieldValueInvalid") -> None:
        self.field, self.message, self.reason = field, message, reason

    @property
    def body(self) -> Obj:
        return {"reason": self.reason, "message": self.message, "field": self.field}


def bad_value(field: str, value: object, why: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause(field, f"Invalid value: {shown}: {why}")


def required(field: str, why: str = "") -> Cause:
    return Cause(field, f"Required value: {why}" if why else "Required value", "FieldValueRequired")


def forbidden_change(field: str, why: str) -> Cause:
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")


def details_of(name: str, kind: str, group: str = "") -> Obj:
    found: Obj = {"name": name}
    if group:
        found["group"] = group
    return found | {"kind": kind}


def success(code: int = 200, details: Obj | None = None) -> Obj:
    body: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        body["details"] = details
    return body | ({"code": code} if code != 200 else {})


def qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def not_found(plural: str, group: str, name: str) -> ApiRefusal:
    return ApiRefusal(404, f'{qualified(plural, group)} "{name}" not found', details=details_of(name, plural, group))


def already_exists(plural: str, group: str, name: str) -> ApiRefusal:
    message = f'{qualified(plural, group)} "{name}" already exists'
    return ApiRefusal(409, message, reason="AlreadyExists", details=details_of(name, plural, group))


def conflict(plural: str, group: str, name: str, why: str) -> ApiRefusal:
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return ApiRefusal(409, message, details=details_of(name, plural, group))


def precondition_failed(plural: str, group: str, key: str, name: str, what: str, asked: str, actual: str) -> ApiRefusal:
    """A uid or resourceVersion named by the caller is not the stored one."""
    why = (
        f"StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: {what} in precondition: {asked}, {what} in object meta: {actual}"
    )
    return conflict(plural, group, name, why)


def invalid(kind: str, group: str, name: str, causes: list[Cause]) -> ApiRefusal:
    """422 with every fault listed; one fault stands bare in the message, several stand in brackets, repeats once."""
    texts = list(dict.fromkeys(f"{each.field}: {each.message}" for each in causes))
    told = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = details_of(name, kind, group) | {"causes": [each.body for each in causes]}
    return ApiRefusal(422, f'{qualified(kind, group)} "{name}" is invalid: {told}', details=details)


def internal(message: str) -> ApiRefusal:
    return ApiRefusal(500, f"Internal error occurred: {message}", details={"causes": [{"message": message}]})


def gone(message: str, *, continue_token: str = "") -> ApiRefusal:
    return ApiRefusal(410, message, meta={"continue": continue_token} if continue_token else None)
