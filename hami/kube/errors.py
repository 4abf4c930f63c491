"""What a Kubernetes API call can end with besides its result."""

import msgspec

from hami.domain.errors import HamiError


class ApiError(HamiError):
    """The API refused a request, or gave no answer.

    `code` is the HTTP status, 0 when none arrived; `reason` and `message` are the API's own words.
    """

    def __init__(self, code: int, reason: str, message: str, *, retry_after: float = 0.0) -> None:
        self.code, self.reason, self.message, self.retry_after = code, reason, message, retry_after
        super().__init__(f"Kubernetes API: {code or 'no answer'} {reason}: {message}".replace(" : ", ": "))

    @property
    def unanswered(self) -> bool:
        """Whether it is unknown if the request was carried out."""
        return self.code == 0


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float = 0.0


class _Status(msgspec.Struct, rename="camel"):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_decode = msgspec.json.Decoder(_Status).decode


def error_of(code: int, body: bytes) -> ApiError:
    """The error in a response that is no success; a body that is no `Status` (a proxy's page) is quoted."""
    try:
        status = _decode(body)
    except msgspec.DecodeError:
        return ApiError(code, "", body[:200].decode(errors="replace").strip())
    wait = status.details.retry_after_seconds if status.details is not None else 0.0
    return ApiError(code, status.reason, status.message, retry_after=wait)
