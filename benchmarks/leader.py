"""CPU time of a leader in large jobs, without a network: state machine and encoding.

    python -m benchmarks.leader [64 512 1024 2048 4096]

All nodes join, confirm the table of a round, stop, and confirm the next one; then they come to
another leader, which takes over.
"""

from __future__ import annotations

import sys
import time

import msgspec

from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.leader import Leader
from undaunted.coordinator.lead.tables import Tables
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.wire.frames import encode

_NS = 1_000_000_000
_DECODE = msgspec.msgpack.Decoder(p.Message).decode


class Job:
    """A leader of ``nodes`` nodes; in a take-over it knows the ledger of the one before."""

    def __init__(self, nodes: int, known: p.Ledger | None = None) -> None:
        policy = PolicyConfig(
            min_nodes=nodes, max_nodes=nodes, max_restarts=9, max_no_progress_cycles=0
        )
        config = c.LeaderConfig("job", policy, node="n0", incarnation="0" * 16)
        epoch, lost = (5, "") if known is None else (known.epoch + 7, "n0")
        self.nodes, self.leader = nodes, Leader(config, known, epoch, lost)
        self._now, self._cpu_s, self._bytes = _NS, 0.0, 0
        self._tables = Tables()  # that nodes have, as they say
        self._last: tuple[object, int] = (None, 0)
        self.feed(c.Begin())

    def feed(self, event: c.LeaderEvent) -> None:
        began = time.process_time()
        commands = self.leader.handle(event, self._now)
        for command in commands:
            if isinstance(command, c.Send):
                self._bytes += self._size(command.message)
        self._cpu_s += time.process_time() - began
        for command in commands:
            if isinstance(command, c.Persist):
                self.feed(c.Persisted(command.ledger.version))

    def _size(self, message: p.Message) -> int:
        known, size = self._last
        if message is known:
            return size
        size = len(encode(msgspec.msgpack.encode(message)))
        if size > 256:  # connections encode a long message once
            self._last = message, size
        return size

    def hello(self, number: int, known: p.Ledger | None = None) -> None:
        tables = () if known is None else self._tables.of(known)
        hello = p.Hello(
            node=f"n{number}",
            incarnation=f"{number:016x}",
            slots=8,
            address=f"10.1.{number // 256}.{number % 256}:29400",
            infra_rank=number,
            running=known is not None,
            round=-1 if known is None else known.round,
            ledger=None if known is None else p.brief(known),
            brief=True,
            tables=tables,
        )
        content = msgspec.msgpack.encode(hello)
        began = time.process_time()
        message = _DECODE(content)
        self._cpu_s += time.process_time() - began
        self.feed(c.Received(number, message))

    def all_say(self, message: p.Message) -> None:
        for number in range(self.nodes):
            self.feed(c.Received(number, message))

    def confirm(self) -> None:
        ledger = self.leader.ledger
        about = {"version": ledger.version, "round": ledger.pending_round}
        self.all_say(p.Prepared(epoch=ledger.epoch, master_addr="host", master_port=1, **about))
        assert self.leader.policy.running

    def measured(self, what: str) -> None:
        print(f"{self.nodes} | {what} | {self._cpu_s * 1e3:.1f} ms | {self._bytes / 1e6:.2f} MB")
        self._cpu_s, self._bytes = 0.0, 0


def main() -> None:
    for nodes in map(int, sys.argv[1:] or ["64", "512", "1024", "2048", "4096"]):
        job = Job(nodes)
        for number in range(nodes):
            job.hello(number)
        job.feed(c.TimerFired("policy last_call", 0))
        job.measured("join")
        job.confirm()
        job.measured("start")
        job.feed(c.Received(1, p.Report(number=1, event=m.NodeFailed("n1", 0, "benchmark"))))
        for number in range(nodes):
            stopped = p.Report(number=2, event=m.NodeStopped(f"n{number}", 0))
            job.feed(c.Received(number, stopped))
        job.confirm()
        job.measured("restart")
        after = Job(nodes, job.leader.ledger)
        for number in range(1, nodes):
            after.hello(number, job.leader.ledger)
        after.all_say(p.Renew(epoch=after.leader.epoch, round=1))
        after.measured("take-over")


if __name__ == "__main__":
    main()
