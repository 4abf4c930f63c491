"""Running one of the long-lived processes: logs first, then its composition root until a signal."""

import signal
from collections.abc import Awaitable, Callable

import anyio

from hami.cli.session import Session


def run_process(session: Session, main: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Returns when the process was asked to stop; an error of the process is raised."""
    from hami.telemetry import configure_logging

    configure_logging(level=session.log_level)
    anyio.run(_until_signalled, main, arguments)


async def _until_signalled(main: Callable[..., Awaitable[None]], arguments: tuple[object, ...]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_on_signal, group.cancel_scope)
        await main(*arguments)
        group.cancel_scope.cancel()


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return
