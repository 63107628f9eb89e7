"""What a message between nodes costs: coordinator and agents in a process each, over loopback.

    python benchmarks/wire.py [--connections 1 64 512] [--seconds 3] [--rounds 3] [--json]

Every connection sends one message, waits for the answer, and sends the next one. Shown are round
trips per second, and the CPU time of either process per round trip (two messages). `streams` is the
same exchange with asyncio's streams in place of our protocol, without handshake and bounds, round
by round beside ours. `join` is the time until all connections have proved themselves (streams:
until they are connected), `idle` the share of a core that the server needs while each connection
renews its lease every 5/3 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from undaunted.coordinator.protocol import Beat, Message, Renew
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.frames import encode
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.server import Server

if TYPE_CHECKING:
    from undaunted.coordinator.wire.connection import Connection

TERMS = Terms("benchmark", "0.1.0", b"a token of a benchmark", node="node0")
RENEWAL_S = 5 / 3
DEADLINE_S = 120.0
HEAD = 4


class Cost(NamedTuple):
    """Of one round of one contender; times in microseconds."""

    per_s: float
    server_us: float
    client_us: float
    join_us: float


# --- server ---------------------------------------------------------------------------------------


class Echo:
    def opened(self, connection: Connection) -> None:
        pass

    def received(self, connection: Connection, message: Any) -> None:
        connection.send(Beat(epoch=message.epoch))

    def closed(self, connection: Connection, reason: str) -> None:
        pass


async def echo_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    decoder = msgspec.msgpack.Decoder(Message)
    encoder = msgspec.msgpack.Encoder()
    try:
        while True:
            head = await reader.readexactly(HEAD)
            content = await reader.readexactly(int.from_bytes(head, "big"))
            answer = Beat(epoch=decoder.decode(content).epoch)
            writer.write(encode(encoder.encode(answer)))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve(kind: str) -> None:
    """Say the port, then the CPU time in seconds for every line that comes, until the end."""
    loop = asyncio.get_running_loop()
    if kind == "undaunted":
        server = Server("127.0.0.1:0", Echo(), TERMS)
        server.nodes = 10_000
        await server.start()
        print(server.port, flush=True)
    else:
        streams = await asyncio.start_server(echo_stream, "127.0.0.1", 0, backlog=4096)
        print(streams.sockets[0].getsockname()[1], flush=True)
    over = loop.create_future()

    def asked() -> None:
        if not os.read(0, 100):
            loop.remove_reader(0)
            over.set_result(None)
        print(time.process_time(), flush=True)

    loop.add_reader(0, asked)
    await over


class ServerProcess:
    def __init__(self, kind: str) -> None:
        command = [sys.executable, __file__, "--serve", kind]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def cpu_s(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.line())

    def close(self) -> None:
        self.process.communicate(timeout=DEADLINE_S)


# --- client ---------------------------------------------------------------------------------------


class Talker:
    """One of our connections: the answer to a message is the next message."""

    count = 0
    talking = False

    def opened(self, connection: Connection) -> None:
        pass

    def received(self, connection: Connection, message: Any) -> None:
        Talker.count += 1
        if Talker.talking:
            connection.send(Renew(epoch=message.epoch))

    def closed(self, connection: Connection, reason: str) -> None:
        pass


async def talk(port: int, connections: int, seconds: float, server: ServerProcess) -> Cost:
    began = time.perf_counter()
    opened = [
        await connect(f"127.0.0.1:{port}", Talker(), TERMS, timeout_s=DEADLINE_S)
        for _ in range(connections)
    ]
    join_s = time.perf_counter() - began
    Talker.talking = True
    before = (Talker.count, server.cpu_s(), time.process_time(), time.perf_counter())
    for connection in opened:
        connection.send(Renew(epoch=1))
    await asyncio.sleep(seconds)
    after = (Talker.count, server.cpu_s(), time.process_time(), time.perf_counter())
    Talker.talking = False
    for connection in opened:
        connection.close("measured")
    return cost(before, after, join_s)


async def talk_streams(port: int, connections: int, seconds: float, server: ServerProcess) -> Cost:
    count = 0
    began = time.perf_counter()
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
    join_s = time.perf_counter() - began

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        decoder = msgspec.msgpack.Decoder(Message)
        encoder = msgspec.msgpack.Encoder()
        while True:
            writer.write(encode(encoder.encode(Renew(epoch=1))))
            await writer.drain()
            head = await reader.readexactly(HEAD)
            decoder.decode(await reader.readexactly(int.from_bytes(head, "big")))
            count += 1

    before = (count, server.cpu_s(), time.process_time(), time.perf_counter())
    tasks = [asyncio.create_task(one(*streams)) for streams in opened]
    await asyncio.sleep(seconds)
    after = (count, server.cpu_s(), time.process_time(), time.perf_counter())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _, writer in opened:
        writer.close()
    return cost(before, after, join_s)


def cost(before: tuple[float, ...], after: tuple[float, ...], join_s: float) -> Cost:
    """From count, CPU time of the server, of the client, and time, each before and after."""
    count, server_s, client_s, passed_s = (b - a for a, b in zip(before, after, strict=True))
    return Cost(count / passed_s, server_s / count * 1e6, client_s / count * 1e6, join_s * 1e6)


async def idle(port: int, connections: int, seconds: float, server: ServerProcess) -> float:
    """Percent of a core; renewals are spread evenly, as those of agents are."""
    opened = [
        await connect(f"127.0.0.1:{port}", Talker(), TERMS, timeout_s=DEADLINE_S)
        for _ in range(connections)
    ]
    loop = asyncio.get_running_loop()
    cpu_s, began = server.cpu_s(), loop.time()
    for number in range(int(seconds / RENEWAL_S * connections)):
        await asyncio.sleep(began + number * RENEWAL_S / connections - loop.time())
        opened[number % connections].send(Renew(epoch=1))
    share = (server.cpu_s() - cpu_s) / (loop.time() - began)
    for connection in opened:
        connection.close("measured")
    return 100 * share


# --- report ---------------------------------------------------------------------------------------


def measure(connections: int, seconds: float, rounds: int) -> dict[str, list[Cost]]:
    contenders = {"undaunted": talk, "streams": talk_streams}
    costs: dict[str, list[Cost]] = {kind: [] for kind in contenders}
    for _ in range(rounds):
        for kind, exchange in contenders.items():
            server = ServerProcess(kind)
            costs[kind].append(asyncio.run(exchange(server.port, connections, seconds, server)))
            server.close()
    return costs


def measure_idle(connections: int, seconds: float) -> float:
    server = ServerProcess("undaunted")
    share = asyncio.run(idle(server.port, connections, seconds, server))
    server.close()
    return share


def table(results: dict[int, dict[str, list[Cost]]]) -> str:
    lines = [
        "| connections | | round trips/s | server, us each | client, us each | join, ms |",
        "|---|---|---|---|---|---|",
    ]
    for connections, costs in results.items():
        for kind, rounds in costs.items():
            per_s, server, client, join = (statistics.median(v) for v in zip(*rounds, strict=True))
            lines.append(
                f"| {connections} | {kind} | {per_s:.0f} | {server:.1f} | {client:.1f} "
                f"| {join / 1e3:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--seconds", type=float, default=3.0, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=("undaunted", "streams"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return
    results = {n: measure(n, options.seconds, options.rounds) for n in options.connections}
    most = max(options.connections)
    share = measure_idle(most, max(options.seconds, RENEWAL_S))
    if options.json:
        print(json.dumps({"idle_percent": share, "costs": results}))
        return
    print(table(results))
    print(f"\nidle with {most} connections: {share:.2f} % of a core")


if __name__ == "__main__":
    main()
