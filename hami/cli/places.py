"""Ways to find a place in the log, over the Log protocol only."""

import re
from collections.abc import AsyncIterator
from typing import Final

import click

from hami.cli.exits import NotFound
from hami.cli.when import AtG, AtTime, Moment
from hami.domain.errors import HistoryTrimmed, InvalidInput
from hami.domain.units import EpochMs
from hami.events.archive.history import first_of
from hami.events.envelope import START, Position, entry_before, entry_key
from hami.events.log import Log, Record

_ENTRY: Final = re.compile(r"\d+-\d+")


async def position_of(log: Log, moment: Moment) -> Position:
    """The last position at that moment. Raises NotFound when the log does not reach it."""
    if isinstance(moment, AtTime):
        return await log.at_or_before(moment.ms)
    if moment.g == 0:
        return START
    return (await record_at(log, moment.g)).position


async def start_for(log: Log, moment: Moment) -> Position:
    """Where to start reading so that the moment itself is the first thing seen (a time: what was recorded after it)."""
    if isinstance(moment, AtG):
        return await before_g(log, moment.g)
    return await log.at_or_before(moment.ms)


async def before_g(log: Log, g: int) -> Position:
    """A position from which reading soon meets `g`: bisection over time, so that a long log is not read from its start."""
    head = await log.head()
    first = await first_of(log)
    low, high, best = int(first.recorded_ms), int(head.recorded_ms), START
    if first.g > 1:
        if g < first.g:
            raise HistoryTrimmed(first.g, first.entry)
        best = _before_first(first)
    while low < high:
        middle = (low + high) // 2
        found = await log.at_or_before(EpochMs(middle))
        if found.g < g:
            low, best = middle + 1, found
        else:
            high = middle
    return await _last_before(log, best, g)


async def _last_before(log: Log, best: Position, g: int) -> Position:
    while True:
        batch = await log.read(best)
        below = [record.position for record in batch if record.position.g < g]
        if below:
            best = below[-1]
        if len(below) < len(batch) or not batch:
            return best


async def record_at(log: Log, g: int) -> Record:
    """Event number `g`. Raises NotFound with what there is instead."""
    for record in await log.read(await before_g(log, g), limit=1):
        if record.position.g == g:
            return record
    head = await log.head()
    first = await first_of(log)
    if first == START:
        raise NotFound(f"there is no event g:{g}: the log is empty")
    raise NotFound(f"there is no event g:{g}: the log holds g:{first.g} to g:{head.g}")


async def until_head(log: Log, after: Position) -> AsyncIterator[Record]:
    """Everything from `after` to the head as it is when called."""
    async for record in records_until(log, after, await log.head()):
        yield record


async def whole_story(log: Log) -> AsyncIterator[Record]:
    """Everything to the head. Where the beginning is trimmed, what is left, with a word about it on standard error."""
    begin, after = await first_of(log), START
    if begin.g > 1:
        click.echo(f"hami: {HistoryTrimmed(begin.g, begin.entry)}", err=True)
        after = _before_first(begin)
    async for record in until_head(log, after):
        yield record


async def since(log: Log, recorded_ms: EpochMs) -> Position:
    """Where to read from to see what was recorded after that time and is still there."""
    try:
        return await log.at_or_before(recorded_ms)
    except HistoryTrimmed as trimmed:
        return _before_first(Position(trimmed.g, trimmed.entry))


def _before_first(first: Position) -> Position:
    return Position(first.g - 1, entry_before(first.entry))


async def records_until(log: Log, after: Position, last: Position) -> AsyncIterator[Record]:
    """Everything after `after`, up to and including `last`."""
    while after < last:
        batch = await log.read(after)
        if not batch:
            return
        for record in batch:
            if record.position > last:
                return
            yield record
        after = batch[-1].position


async def find_record(log: Log, text: str) -> Record:
    """The event that `text` names: `g:N`, a stream entry id, or `producer/epoch/seq`. Raises InvalidInput, NotFound."""
    if text.startswith("g:") and text[2:].isdecimal():
        return await record_at(log, int(text[2:]))
    if _ENTRY.fullmatch(text):
        if entry_key(text) == (0, 0):
            raise NotFound("no event is stored as 0-0: that is where every log begins")
        for record in await log.read(Position(0, entry_before(text)), limit=1):
            if record.position.entry == text:
                return record
        before = await log.at_or_before(EpochMs(int(text.partition("-")[0]) - 1))
        raise NotFound(f"no event is stored as {text}; the entry before it is {before.entry} (g:{before.g})")
    if text.count("/") < 2:
        raise InvalidInput("ID", text, "use g:123, producer/epoch/seq, or a stream entry id such as 1700000000000-0")
    return await _by_event_id(log, text)


async def _by_event_id(log: Log, text: str) -> Record:
    first = await first_of(log)
    async for record in until_head(log, _before_first(first) if first.g > 1 else START):
        if record.envelope.id == text:
            return record
    if first.g > 1:
        raise HistoryTrimmed(first.g, first.entry)
    producer = text.rsplit("/", 2)[0]
    epoch, seq, _ = await log.last_of(producer)
    if seq:
        raise NotFound(f"no event {text}: the last one of {producer} is {producer}/{epoch}/{seq}")
    raise NotFound(f"no event {text}: {producer} never wrote to this log")
