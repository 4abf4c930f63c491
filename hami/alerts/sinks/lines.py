"""A log: one JSON line a notice, on standard output."""

from collections.abc import Mapping, Sequence
from typing import TextIO

import msgspec

from hami.alerts.decide.notice import Notice
from hami.alerts.decide.wire import document
from hami.alerts.sinks.base import Answer, Away, Taken


class Lines:
    """Implements hami.alerts.sinks.base.Sink."""

    refresh_s = 0.0

    def __init__(self, out: TextIO, *, name: str, labels: Mapping[str, str]) -> None:
        self._out, self.name, self._labels = out, name, dict(labels)

    async def deliver(self, notice: Notice) -> Answer:
        line = msgspec.json.encode(document(notice, self._labels)).decode()
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except OSError as error:
            return Away(str(error))
        return Taken()

    async def refresh(self, firing: Sequence[Notice]) -> Answer:  # noqa: ARG002 - a line stays written
        return Taken()
