"""Waiting between tries, longer each time, jittered so that 5,000 agents do not come back in one moment."""

import random

import anyio


class Backoff:
    def __init__(self, *, least_s: float = 0.05, most_s: float = 5.0) -> None:
        self._least_s, self._most_s = least_s, most_s
        self._failures = 0

    async def wait(self) -> None:
        self._failures = min(self._failures + 1, 16)
        await anyio.sleep(random.uniform(self._least_s, min(self._most_s, 2 * self._least_s * 2**self._failures)))  # noqa: S311 - jitter

    def reset(self) -> None:
        self._failures = 0
