"""`python -m hami.sim.apiserver [port] [kubeconfig]`: a server of its own, until it is interrupted."""

import json
import signal
import sys
from pathlib import Path

import anyio

from hami.sim.apiserver.app import Settings, serving


async def _main(port: int, kubeconfig: str) -> None:
    async with serving(Settings(port=port)) as server:
        if kubeconfig:
            await anyio.Path(kubeconfig).write_text(json.dumps(server.kubeconfig()))
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                break


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "", ""]
    anyio.run(
        _main, int(arguments[0] or 0), str(Path(arguments[1])) if arguments[1] else "", backend_options={"use_uvloop": True}
    )
