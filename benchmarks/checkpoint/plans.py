"""How much ranks tell each other when they plan anew: at the first save, or when the state changes.

    python -m benchmarks.checkpoint.plans

Ranks are threads with an `Agreement` each, over a store in memory that counts what it is given and
asked for. All have the same state of `ITEMS` shards. Prints what a rank gives and gets, and what
all of them get: each its own part (`scatter`), and as a comparison the parts of all (`round`).
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from undaunted.agreement.agreement import Agreement
from undaunted.checkpointing.dcp import plan_codec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

ITEMS = 1500  # of a rank: about those of a model of 125 layers with Adam, sharded
RANKS = (8, 128, 1024, 4096)
MOST_WITH_ALL = 1024  # ranks that are sent the parts of all: 4,096 of them would fill 119 GB
TIMEOUT_S = 600.0
STACK_BYTES = 256 << 10


class Server:
    """What a store's server keeps. Equal values take memory once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, bytes] = {}
        self.known: dict[bytes, bytes] = {}
        self.waits: dict[str, threading.Event] = {}

    def written(self, key: str) -> threading.Event:
        """Return what is set when there is such a key."""
        with self.lock:
            return self.waits.setdefault(key, threading.Event())


class Client:
    """A torch store, as far as an `Agreement` uses one.

    Attributes:
        given, got: bytes of values so far.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.given = 0
        self.got = 0

    def set(self, key: str, value: bytes) -> None:
        """As a torch store, and so are all others."""
        self.given += len(value)
        with self._server.lock:
            self._server.values[key] = self._server.known.setdefault(value, value)
        self._server.written(key).set()

    def get(self, key: str) -> bytes:
        value = self._server.values[key]
        self.got += len(value)
        return value

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def has_extended_api(self) -> bool:
        return True

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._server.values for key in keys)

    def wait(self, keys: Sequence[str], limit: timedelta) -> None:
        for key in keys:
            if not self._server.written(key).wait(limit.total_seconds()):
                raise RuntimeError(f"no {key}")

    def add(self, key: str, more: int) -> int:
        with self._server.lock:
            count = int(self._server.values.get(key, b"0")) + more
            self._server.values[key] = b"%d" % count
        return count

    def compare_set(self, key: str, expected: str, value: bytes) -> bytes:
        assert expected == ""
        self.given += len(value)
        with self._server.lock:
            found = self._server.values.setdefault(key, value)
        self._server.written(key).set()
        self.got += len(found)
        return found

    def delete_key(self, key: str) -> bool:
        with self._server.lock:
            return self._server.values.pop(key, None) is not None


def plan_of_a_rank() -> tuple[bytes, bytes]:
    """Return a local plan, and what rank 0 has left of it, encoded."""
    none, size = torch.Size([0, 0]), torch.Size([8, 8])
    data = TensorWriteData(ChunkStorageMetadata(none, size), TensorProperties(), size)
    items = [
        WriteItem(MetadataIndex(f"optimizer.state.{i}.exp_avg", none), WriteItemType.SHARD, data)
        for i in range(ITEMS)
    ]
    plan = SavePlan(items)
    return plan_codec.encode_plan(plan), plan_codec.encode_part(plan, plan)


def measure(ranks: int, plan: bytes, part: bytes, *, scatter: bool) -> str:
    """Return a row of the table."""
    server = Server()
    clients = [Client(server) for _ in range(ranks)]

    def take_part(rank: int) -> int:
        agreement: Any = Agreement(clients[rank], rank, ranks, "s")
        if scatter:
            return len(agreement.scatter("save", plan, lambda _: [part] * ranks, TIMEOUT_S))
        all_parts = [part] * ranks
        return len(
            agreement.round("save", plan, lambda _: msgspec.msgpack.encode(all_parts), TIMEOUT_S)
        )

    began = time.perf_counter()
    with ThreadPoolExecutor(ranks) as pool:
        answers = set(pool.map(take_part, range(ranks)))
    took_s = time.perf_counter() - began
    assert len(answers) == 1
    others = clients[1:]
    given, got = max(one.given for one in others), max(one.got for one in others)
    total = sum(one.got for one in others)
    return (
        f"| {ranks:,} | {'its own part' if scatter else 'all parts'} | {given / 1e3:.0f} kB "
        f"| {got / 1e3:.1f} kB | {total / 1e6:,.1f} MB | {clients[0].got / 1e6:,.1f} MB "
        f"| {clients[0].given / 1e6:,.1f} MB | {took_s:.1f} s |"
    )


def main() -> None:
    """Print a table."""
    threading.stack_size(STACK_BYTES)
    plan, part = plan_of_a_rank()
    print(
        f"{ITEMS} items per rank: a plan of {len(plan) / 1e3:.1f} kB, a part of "
        f"{len(part) / 1e3:.1f} kB"
    )
    print("| ranks | each is sent | gives | gets | all others get | rank 0 gets | gives | took |")
    print("|---|---|---|---|---|---|---|---|")
    for ranks in RANKS:
        if ranks <= MOST_WITH_ALL:
            print(measure(ranks, plan, part, scatter=False), flush=True)
        print(measure(ranks, plan, part, scatter=True), flush=True)


if __name__ == "__main__":
    main()
