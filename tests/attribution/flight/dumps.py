"""Dumps of ranks, made call by call in the form of NCCL's."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

START_NS = 1_795_370_000_000_000_000


class Rank:
    """One rank and what it has called; groups are numbered in the order in which it has them."""

    def __init__(self, rank: int, groups: dict[str, list[int]], version: str = "2.9") -> None:
        self.rank = rank
        self.groups = {name: ranks for name, ranks in groups.items() if rank in ranks}
        self.ids = {name: number for number, name in enumerate(self.groups)}
        self.version = version
        self.entries: list[dict[str, Any]] = []
        self.numbers = dict.fromkeys(self.groups, 0)
        self.transfers = dict.fromkeys(self.groups, 0)
        self.ended = dict.fromkeys(self.groups, -1)

    def call(self, group: str, name: str = "all_reduce", *, state: str = "completed", **more):
        """Call a collective, by default one that ends."""
        self.numbers[group] += 1
        if state == "completed":
            self.ended[group] = self.numbers[group]
        return self._add(group, f"nccl:{name}", state, is_p2p=False, **more)

    def send(self, group: str, peer: int, *, state: str = "completed"):
        return self._transfer(group, peer, "send", "->", state)

    def recv(self, group: str, peer: int, *, state: str = "completed"):
        return self._transfer(group, peer, "recv", "<-", state)

    def _transfer(self, group: str, peer: int, kind: str, arrow: str, state: str):
        ranks = self.groups[group]
        self.transfers[group] += 1
        name = f"nccl:{kind} {ranks.index(self.rank)}{arrow}{ranks.index(peer)}"
        return self._add(group, name, state, is_p2p=True)

    def _add(self, group: str, name: str, state: str, *, is_p2p: bool, size=(4,), dtype="Float"):
        self.entries.append(
            {
                "record_id": len(self.entries),
                "pg_id": self.ids[group],
                "process_group": (group, "default_pg" if group == "0" else "TENSOR"),
                "collective_seq_id": self.numbers[group],
                "p2p_seq_id": self.transfers[group],
                "op_id": len(self.entries) + 1,
                "profiling_name": name,
                "time_created_ns": START_NS + len(self.entries) * 1_000_000_000,
                "input_sizes": [list(size)],
                "output_sizes": [list(size)],
                "input_dtypes": [dtype],
                "output_dtypes": [dtype],
                "state": state,
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": state == "completed",
                "timeout_ms": 600000,
                "is_p2p": is_p2p,
            }
        )
        return self

    def dump(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "nccl_version": "2.27.3",
            "pg_config": {
                name: {"name": name, "desc": "TENSOR", "ranks": str(ranks)}
                for name, ranks in self.groups.items()
            },
            "pg_status": {
                str(self.ids[name]): {
                    "last_enqueued_collective": self.numbers[name] or -1,
                    "last_started_collective": -1,
                    "last_completed_collective": self.ended[name],
                }
                for name in self.groups
            },
            "entries": self.entries,
        }

    def write(self, directory: Path, *, as_json: bool = False) -> Path:
        if as_json:
            path = directory / f"rank_{self.rank}.json"
            path.write_text(json.dumps(self.dump()))
        else:
            path = directory / f"_dump_{self.rank}"
            path.write_bytes(pickle.dumps(self.dump(), protocol=2))
        return path


class GlooRank(Rank):
    """One rank of gloo, as torch dumps it: no members, no states, no transfers."""

    def call_at(self, at: float, group: str = "0", name: str = "all_reduce", *, left=True, **more):
        """Call a collective at a second; ``left`` = the call came back, with an error or not."""
        self.numbers[group] += 1
        self._add(group, f"gloo:{name}", "scheduled", is_p2p=False, **more)
        self.entries[-1].update(
            retired=left, timeout_ms=2000, time_created_ns=START_NS + round(at * 1e9)
        )
        return self

    def dump(self) -> dict[str, Any]:
        numbers = {str(self.ids[name]): number for name, number in self.numbers.items()}
        return {
            "version": "2.10",
            "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
            "pg_status": {
                one: {
                    "last_enqueued_collective": number or -1,
                    "last_started_collective": -1,
                    "last_completed_collective": number or -1,
                }
                for one, number in numbers.items()
            },
            "entries": self.entries,
        }


def gloo_job(size: int, groups: dict[str, list[int]] | None = None) -> list[GlooRank]:
    """Return the ranks of a job over gloo, each after three collectives of all, at 0.1 to 0.3 s."""
    every = {"0": list(range(size)), **(groups or {})}
    ranks = [GlooRank(rank, every) for rank in range(size)]
    for one in ranks:
        for step in (1, 2, 3):
            one.call_at(step / 10)
    return ranks


def job(size: int, groups: dict[str, list[int]] | None = None) -> list[Rank]:
    """Return the ranks of a job, each after three collectives of all."""
    every = {"0": list(range(size)), **(groups or {})}
    ranks = [Rank(rank, every) for rank in range(size)]
    for one in ranks:
        for _ in range(3):
            one.call("0")
    return ranks
