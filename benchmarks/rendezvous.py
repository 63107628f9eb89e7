"""What one restart round of many nodes costs: undaunted's coordinator and torch's rendezvous.

    python benchmarks/rendezvous.py [--nodes 2,64,512] [--rounds 5]

Light agents (the real follower, real sockets, no ranks) join a leader in a process of its own. Then
one of them reports a failure, all are told to stop, say that they have, get the table of the next
round, acknowledge it, and are told to start. Measured are the time from the failure until the last
agent is told to start, the leader's CPU time and messages per round, and its CPU time while nothing
happens. Beside it, in the same run: as many handlers of torch's dynamic rendezvous (c10d), in
threads of one process, that meet again; it is only tried up to --torch-nodes. With --against, the
benchmark of another checkout is run in turns with this one, --turns times each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
AGENTS_PER_PROCESS = 128
IDLE_S = 5.0
_NS = 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", default="2,64,512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch-nodes", type=int, default=64)
    parser.add_argument("--against", help="another checkout")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        asyncio.run(_part(json.loads(arguments.part)))
        return
    if arguments.against:
        take_turns([Path(arguments.against), ROOT], arguments)
        return
    print(
        "nodes | undaunted: ms a round | leader CPU ms | messages a node | idle CPU % | torch: ms"
    )
    for nodes in map(int, arguments.nodes.split(",")):
        ours = measure(nodes, arguments.rounds)
        theirs = torch_rounds(nodes, arguments.rounds) if nodes <= arguments.torch_nodes else []
        times = [each * 1e3 for each in ours["rounds"]]
        shown = f"{statistics.median(times):.1f} [{min(times):.1f}..{max(times):.1f}]"
        torch = [each * 1e3 for each in theirs]
        beside = (
            f"{statistics.median(torch):.0f} [{min(torch):.0f}..{max(torch):.0f}]" if torch else "-"
        )
        print(
            f"{nodes} | {shown} | {ours['cpu'] * 1e3:.1f} | {ours['messages'] / nodes:.1f} | "
            f"{ours['idle'] * 100:.2f} | {beside}",
            flush=True,
        )


def take_turns(checkouts: list[Path], arguments: argparse.Namespace) -> None:
    """Run the benchmark of each checkout, one after the other; print a row of each."""
    for nodes in arguments.nodes.split(","):
        for _ in range(arguments.turns):
            for checkout in checkouts:
                command = [sys.executable, str(checkout / "benchmarks" / "rendezvous.py")]
                command += ["--nodes", nodes, "--rounds", str(arguments.rounds)]
                done = subprocess.run(
                    [*command, "--torch-nodes", "0"], stdout=subprocess.PIPE, text=True, check=True
                )
                print(f"{checkout.name} | {done.stdout.splitlines()[-1]}", flush=True)


# --- undaunted ------------------------------------------------------------------------------------


def measure(nodes: int, rounds: int) -> dict[str, Any]:
    """Run a leader and its agents; return seconds per round, CPU seconds a round, and so on."""
    leader = _start({"role": "leader", "nodes": nodes})
    port = _line(leader)["port"]
    counts = [AGENTS_PER_PROCESS] * (nodes // AGENTS_PER_PROCESS)
    counts += [nodes % AGENTS_PER_PROCESS] if nodes % AGENTS_PER_PROCESS else []
    workers, first = [], 0
    for count in counts:
        about = {"role": "agents", "port": port, "first": first, "count": count}
        workers.append(_start({**about, "rounds": rounds}))
        first += count
    failed: dict[int, int] = {}
    started: dict[int, int] = {}
    try:
        for worker in workers:
            for number in range(rounds + 1):
                told = _line(worker)
                started[number] = max(started.get(number, 0), told["started"])
                if told["failed"]:
                    failed[number] = told["failed"]
        done = _line(leader)
    finally:
        for process in [leader, *workers]:
            process.kill()
            process.communicate()
    # The failure that ends round n begins round n + 1.
    durations = [(started[number + 1] - failed[number]) / _NS for number in range(rounds)]
    return {"rounds": durations, **done}


def _start(part: dict[str, Any]) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "UNDAUNTED_TOKEN": ""}
    command = [sys.executable, __file__, "--part", json.dumps(part)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        raise RuntimeError("a part of the benchmark has ended early")
    line: dict[str, Any] = json.loads(text)
    return line


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def _part(part: dict[str, Any]) -> None:
    if part["role"] == "leader":
        await _leader(part["nodes"])
    else:
        await _agents(part)


async def _leader(nodes: int) -> None:
    from undaunted.coordinator.lead import messages as c
    from undaunted.coordinator.lead.leader import Leader
    from undaunted.coordinator.policy.config import PolicyConfig
    from undaunted.coordinator.policy.messages import NodeFinished
    from undaunted.coordinator.protocol import Report
    from undaunted.coordinator.service.leading import Leading
    from undaunted.coordinator.service.participant import Participant
    from undaunted.coordinator.wire.handshake import Terms
    from undaunted.coordinator.wire.network import Sockets

    policy = PolicyConfig(
        min_nodes=nodes, max_nodes=nodes, max_restarts=1000, max_no_progress_cycles=0
    )
    config = c.LeaderConfig(run_id="bench", policy=policy, node="n0", incarnation="x")
    network = Sockets(Terms("bench", "bench"))
    seen = {"messages": 0, "cpu": 0.0, "rounds": 0, "at": 0.0}
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def keep(ledger: Any, *_: Any) -> None:
        """The first round is set-up; the rest is measured."""
        if not ledger.running or ledger.round == seen["rounds"] - 1:
            return
        seen["rounds"] = ledger.round + 1
        if ledger.round == 0:
            seen["cpu"], seen["messages"] = time.process_time(), 0

    class Counted(Leader):
        """Counts messages, and is told when the rounds are over."""

        def handle(self, event: Any, now: int) -> Any:
            commands = super().handle(event, now)
            sent = sum(1 for each in commands if isinstance(each, c.Send))
            seen["messages"] += sent + isinstance(event, c.Received)
            report = getattr(event, "message", None)
            last = isinstance(report, Report) and isinstance(report.event, NodeFinished)
            if last and not over.done():
                over.set_result(None)
            return commands

    leader = Counted(config)
    participant = Participant()
    _say(port=await participant.listen(network, 0, nodes=nodes, say=print))
    participant.lead(Leading(leader, network, keep=keep, done=lambda _: None))
    await over
    rounds = seen["rounds"] - 1
    cpu, messages = time.process_time() - seen["cpu"], seen["messages"]
    began, wall = time.process_time(), time.monotonic()
    await asyncio.sleep(IDLE_S)
    idle = (time.process_time() - began) / (time.monotonic() - wall)
    _say(cpu=cpu / rounds, messages=messages / rounds, idle=idle)
    await asyncio.sleep(60)


async def _agents(part: dict[str, Any]) -> None:
    """Followers whose node does at once what it is told."""
    agents = [_Agent(part, part["first"] + index) for index in range(part["count"])]
    for agent in agents:
        agent.following.begin()
    for number in range(part["rounds"] + 1):
        await asyncio.gather(*(agent.wait_started(number) for agent in agents))
        last = max(agent.started[number] for agent in agents)
        failed = 0
        if part["first"] == 0:
            # Once all of this process have begun; others may be a moment behind.
            await asyncio.sleep(0.2)
            failed = time.monotonic_ns()
            if number < part["rounds"]:
                agents[0].fail()
            else:
                agents[0].finish()
        _say(started=last, failed=failed)
    await asyncio.sleep(60)


class _Agent:
    def __init__(self, part: dict[str, Any], index: int) -> None:
        from undaunted.coordinator.lead.follower import Follower
        from undaunted.coordinator.lead.messages import FollowerConfig
        from undaunted.coordinator.service.following import Following
        from undaunted.coordinator.wire.handshake import Terms
        from undaunted.coordinator.wire.network import Sockets

        address = f"127.0.0.1:{part['port']}"
        config = FollowerConfig(
            node=f"n{index}", incarnation=f"i{index}", slots=1, endpoints=(address,),
            infra_rank=index, address=f"127.0.0.1:{20000 + index}",
        )  # fmt: skip
        self.started: dict[int, int] = {}
        self._waiting: dict[int, asyncio.Event] = {}
        self._node, self._round = config.node, -1
        network = Sockets(Terms("bench", "bench"))
        self.following = Following(Follower(config), network, self, self)

    def prepare(self, table: Any) -> None:
        from undaunted.coordinator.lead.messages import TableKnown

        self.following.table_known(TableKnown(table.round, table.version, "127.0.0.1", 1))

    def deliver(self, command: Any) -> None:
        from undaunted.coordinator.policy.messages import NodeStopped, Start, Stop

        match command:
            case Start():
                self._round = command.round
                self.started[command.round] = time.monotonic_ns()
                self._event(command.round).set()
            case Stop():
                self.following.tell(NodeStopped(self._node, command.round))

    def fail(self) -> None:
        from undaunted.coordinator.policy.messages import NodeFailed

        self.following.tell(NodeFailed(self._node, self._round, "benchmark"))

    def finish(self) -> None:
        from undaunted.coordinator.policy.messages import NodeFinished

        self.following.tell(NodeFinished(self._node, self._round))

    async def wait_started(self, number: int) -> None:
        await self._event(number).wait()

    def _event(self, number: int) -> asyncio.Event:
        return self._waiting.setdefault(number, asyncio.Event())

    def __getattr__(self, name: str) -> Any:
        if name in {"stop_ranks", "lead", "stand_down", "leave", "give_up", "say", "linked"}:
            return lambda *_: None
        raise AttributeError(name)


# --- torch ----------------------------------------------------------------------------------------


def torch_rounds(nodes: int, rounds: int) -> list[float]:
    """Seconds until all of so many handlers have met again, for each round; [] without torch."""
    try:
        from torch.distributed import TCPStore
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
    except ImportError:
        return []
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    barrier = threading.Barrier(nodes)
    took: list[list[float]] = [[] for _ in range(rounds + 1)]

    def node() -> None:
        parameters = RendezvousParameters(
            backend="c10d", endpoint=f"127.0.0.1:{server.port}", run_id="bench",
            min_nodes=nodes, max_nodes=nodes, is_host="0", local_addr="127.0.0.1",
        )  # fmt: skip
        backend, store = create_backend(parameters)
        handler = create_handler(store, backend, parameters)
        for number in range(rounds + 1):
            barrier.wait()
            began = time.monotonic()
            handler.next_rendezvous()
            took[number].append(time.monotonic() - began)

    threads = [threading.Thread(target=node, daemon=True) for _ in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return [max(each) for each in took[1:] if len(each) == nodes]


if __name__ == "__main__":
    main()
