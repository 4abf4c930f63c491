"""Running a verb's coroutine until it ends or a signal says so.

Signals cancel an anyio scope, which repeats itself until everything has stopped. What asyncio does by itself on Ctrl-C is one
single cancellation, and a client library that is just connecting may swallow it.
"""

import signal
from collections.abc import Awaitable, Callable

import anyio

from hami.cli.session import Session


def run_verb(
    main: Callable[..., Awaitable[None]], *arguments: object, stopping: tuple[signal.Signals, ...] = (signal.SIGINT,)
) -> None:
    """A verb that ends by itself. Raises KeyboardInterrupt after Ctrl-C, or whatever else is in `stopping`."""
    if anyio.run(_until_signalled, main, arguments, stopping):
        raise KeyboardInterrupt


def run_process(session: Session, main: Callable[..., Awaitable[None]], *arguments: object, uvloop: bool = False) -> None:
    """One of the long-lived processes, logs first. Returns when it was asked to stop; an error of the process is raised.

    `uvloop` is for processes whose time goes into HTTP and the store.
    """
    from hami.telemetry import configure_logging

    configure_logging(level=session.log_level)
    stopping = (signal.SIGTERM, signal.SIGINT)
    anyio.run(_until_signalled, main, arguments, stopping, backend_options={"use_uvloop": uvloop})


async def _until_signalled(
    main: Callable[..., Awaitable[None]], arguments: tuple[object, ...], stopping: tuple[signal.Signals, ...]
) -> bool:
    """Whether a signal ended it."""
    signalled = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_on_signal, group.cancel_scope, signalled, stopping)
        await main(*arguments)
        group.cancel_scope.cancel()
    return signalled.is_set()


async def _cancel_on_signal(scope: anyio.CancelScope, signalled: anyio.Event, stopping: tuple[signal.Signals, ...]) -> None:
    with anyio.open_signal_receiver(*stopping) as signals:
        async for _ in signals:
            signalled.set()
            scope.cancel()
            return
