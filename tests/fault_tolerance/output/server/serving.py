"""A log server in a thread of the test, on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.server import Server
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.output.server import messages as w
from undaunted.fault_tolerance.output.server.config import LogServerConfig
from undaunted.fault_tolerance.output.server.root import Root
from undaunted.fault_tolerance.output.server.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOKEN = b"a token of these tests"
DEADLINE_S = 30.0


class Served:
    """A server that runs in a thread until `stop`."""

    def __init__(self, make: Callable[[], Root], port: int = 0) -> None:
        self.port = port
        self.said: list[str] = []
        self.complete = False
        self._make = make
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._grace_s = 5.0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)

    def stop(self, grace_s: float = 5.0) -> None:
        if self._stop is None:
            return
        self._grace_s = grace_s
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        self._stop = None

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        handler = self._make()
        server = Server(
            f"127.0.0.1:{self.port}",
            handler,
            Terms("job", "1", TOKEN),
            messages=w.FromSender,
            say=self.said.append,
        )
        self._stop = asyncio.Event()
        await server.start()
        self.port = server.port
        self._ready.set()
        await self._stop.wait()
        if self._grace_s:
            self.complete = await handler.finish(self._grace_s)
        await server.close("the test ends")
        if not self._grace_s:
            await handler.finish(0.01)


def config(root: Path, **changes: object) -> LogServerConfig:
    return LogServerConfig(**{"root": str(root), "settle_s": 0.0, **changes})


def root_server(
    directory: Path, port: int = 0, said: list[str] | None = None, **changes: object
) -> Served:
    lines = [] if said is None else said
    return Served(lambda: Root(config(directory, **changes), 1, lines.append), port)


@contextlib.contextmanager
def sender(
    port: int, token_file: Path, node: str = "n1", said: list[str] | None = None
) -> Iterator[Sender]:
    if not token_file.exists():
        token_file.touch(0o600)
        token_file.write_bytes(TOKEN)
    address = f"127.0.0.1:{port}"
    nodes = Nodes(
        min_nodes=2,
        max_nodes=2,
        endpoints=[address],
        is_host=True,
        address="127.0.0.1",
        token_file=str(token_file),
    )
    lines = [] if said is None else said
    one = Sender(nodes, Terms("job", "1", node=node), address, lines.append)
    one.begin()
    try:
        yield one
    finally:
        one.close(DEADLINE_S)
