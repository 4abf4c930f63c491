"""Claims of the demo: what was said, whether it held, and what was seen. The exit status is theirs."""

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import msgspec


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """`seen` is the evidence in words, whether the claim held or not."""

    text: str
    held: bool
    seen: str
    seconds: float


class Screen(Protocol):
    """Where the story is told: a terminal with a progress display, or plain lines."""

    def chapter(self, title: str) -> None: ...

    def say(self, text: str) -> None: ...

    def table(self, columns: list[str], rows: list[list[str]]) -> None: ...

    def claim(self, claim: Claim) -> None: ...

    def working(self, text: str) -> None: ...

    def close(self) -> None:
        """The story is over, well or not: the terminal is as it was."""
        ...


class Claims:
    """Collects claims and shows each as it is decided."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.made: list[Claim] = []

    @property
    def all_held(self) -> bool:
        return bool(self.made) and all(claim.held for claim in self.made)

    def check(self, text: str, held: bool, seen: str, *, seconds: float = 0.0) -> bool:
        """A claim whose truth is known now."""
        claim = Claim(text=text, held=held, seen=seen, seconds=seconds)
        self.made.append(claim)
        self.screen.claim(claim)
        return held

    async def eventually(
        self, text: str, look: Callable[[], Awaitable[tuple[bool, str]]], *, within: float, every: float = 0.02
    ) -> bool:
        """A claim that must come true within a time: `look` answers (true now, what is seen now)."""
        begun = time.monotonic()
        seen = "nothing yet"
        self.screen.working(text)
        while True:
            held, seen = await look()
            passed = time.monotonic() - begun
            if held or passed > within:
                return self.check(text, held, seen if held else f"not within {within:g} s; {seen}", seconds=passed)
            await anyio.sleep(every)
