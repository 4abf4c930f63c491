"""Faults a test can put in the server's way. They apply in the order they were added; each counts its hits."""

import re
from dataclasses import dataclass, field


@dataclass(slots=True)
class Fault:
    """What goes wrong with requests whose method and path (query included) match.

    Exactly the fields that are set apply, in this order: wait `delay` seconds; then `drop` the connection without an
    answer, or answer `status`; a watch that was let through ends after `close_after` lines, is cut in the middle of a
    line with `cut`, or ends with the in-stream ERROR of code 410 with `expire`; `inject` puts raw bytes into a watch.
    `drop_answer` carries the request out and then drops the connection: the caller cannot know that it happened.
    """

    method: str = ""
    path: str = ""
    watch: bool | None = None
    times: int = -1
    delay: float = 0.0
    drop: bool = False
    drop_answer: bool = False
    status: int = 0
    message: str = "injected fault"
    retry_after: int = 0
    close_after: int = -1
    cut: bool = False
    expire: bool = False
    inject: bytes = b""
    hits: int = field(default=0, init=False)

    def takes(self, method: str, target: str, *, watch: bool) -> bool:
        if self.times == 0 or (self.method and self.method != method):
            return False
        if self.watch is not None and self.watch is not watch:
            return False
        return re.search(self.path, target) is not None


class Faults:
    def __init__(self) -> None:
        self._active: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        self._active.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        self._active.remove(fault)

    def clear(self) -> None:
        self._active.clear()

    def next(self, method: str, target: str, *, watch: bool) -> Fault | None:
        for fault in self._active:
            if fault.takes(method, target, watch=watch):
                fault.hits += 1
                fault.times -= 1 if fault.times > 0 else 0
                return fault
        return None
