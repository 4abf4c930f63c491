"""Old payloads become new ones: (type, schema) -> a pure function from dict to dict of schema + 1. Pure.

Never change or remove an entry: the log keeps old events for ever.
"""

from collections.abc import Callable
from typing import Any, Final

Payload = dict[str, Any]
Upcaster = Callable[[Payload], Payload]

UPCASTERS: Final[dict[tuple[str, int], Upcaster]] = {}
