"""Fault plans: which fault happens on which rank, when. Pure values; makes no fault.

A plan is written ``KIND:rank=1,iteration=30;KIND:...`` or as a JSON list of objects with the same
keys (`reading`). Every rank settles what is random from the seed alone, so that all of them agree
without talking to each other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal[
    "exception",
    "sigkill",
    "sigterm",
    "sigstop",
    "segfault",
    "abort",
    "gil",
    "sleep",
    "oom",
    "exit",
    "slow",
    "nan",
    "torn-write",
    "call",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


class FaultPlanError(ValueError):
    """A plan that cannot be read; the message names the bad part and what is allowed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A number, or one of ``low``..``high`` (both included) that the seed picks."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault.

    Attributes:
        kind: what happens, one of ``KINDS``.
        id: name of the fault in its plan, unique; by default kind and position, ``sigkill-1``.
        rank: global rank; ``random`` = one that the seed picks, ``all`` = every rank.
        iteration: it happens in the call ``undaunted.step(i)`` that reaches this iteration.
        after: it happens so many seconds after the rank's program began. Without ``iteration`` and
            ``after`` it happens before the program's first line.
        round: only in this round (0 = before the first restart); None = in any.
        seconds: how long ``sleep`` and ``gil`` last, None = for ever; how long each pause of
            ``slow`` is, None = 0.2.
        code: exit code of ``exit``, 0 to 255.
        steps: in how many steps ``slow`` pauses, from its own on; None = 10.
        bytes: how much ``torn-write`` leaves of the next large file; None = 65536.
        seed: picks among choices.
        repeat: happens again after restarts; without it a fault happens once per run.
    """

    kind: Kind
    id: str
    rank: Choice | Literal["random", "all"]
    iteration: Choice | None = None
    after: float | None = None
    round: int | None = None
    seconds: float | None = None
    code: int = 1
    steps: int | None = None
    bytes: int | None = None
    seed: int = 0
    repeat: bool = False

    def __str__(self) -> str:
        options = {
            "rank": self.rank,
            "iteration": self.iteration,
            "after": self.after,
            "round": self.round,
            "seconds": self.seconds,
            "code": self.code if self.kind == "exit" else None,
            "steps": self.steps,
            "bytes": self.bytes,
            "seed": self.seed or None,
            "id": self.id,
        }
        parts = [f"{key}={value}" for key, value in options.items() if value is not None]
        return f"{self.kind}:{','.join([*parts, 'repeat'] if self.repeat else parts)}"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of one run."""

    faults: tuple[Fault, ...] = ()

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Read a plan.

        Args:
            text: ``kind:key=value,...;...`` or a JSON list of objects; empty means no faults.

        Raises:
            FaultPlanError: names the bad part of ``text``.
        """
        from undaunted.faults.reading import read_faults

        return cls(read_faults(text))

    def to_env(self) -> str:
        """The plan as text that :meth:`parse` reads back unchanged; "" without faults."""
        return ";".join(map(str, self.faults))

    def without(self, ids: Iterable[str]) -> FaultPlan:
        """The plan for rounds after the faults ``ids`` have happened; ``repeat`` ones stay."""
        gone = set(ids)
        return FaultPlan(tuple(f for f in self.faults if f.repeat or f.id not in gone))

    def check_ranks(self, world_size: int) -> None:
        """Make sure that every fault can happen.

        Args:
            world_size: number of ranks, at least 1.

        Raises:
            FaultPlanError: one is for a rank that does not exist.
        """
        for fault in self.faults:
            if isinstance(fault.rank, Choice) and fault.rank.high >= world_size:
                span = f"ranks 0 to {world_size - 1}" if world_size > 1 else "only rank 0"
                raise FaultPlanError(
                    f"fault {str(fault)!r} is for rank {fault.rank}; this job has {span}"
                )

    def due(self, *, rank: int, round_: int, world_size: int) -> tuple[Fault, ...]:
        """The faults that may happen on ``rank`` in ``round_``, with nothing random left.

        Args:
            rank: global rank.
            round_: number of the round, from 0.
            world_size: number of ranks, at least 1.
        """
        here = ("all", Choice(rank, rank))
        settled = (settle(fault, world_size) for fault in self.faults)
        return tuple(f for f in settled if f.rank in here and f.round in (None, round_))


def settle(fault: Fault, world_size: int) -> Fault:
    """The fault with its random choices made: the same on every rank and every machine."""
    rank = Choice(0, max(world_size, 1) - 1) if fault.rank == "random" else fault.rank
    return replace(
        fault,
        rank=_pick(rank, fault, "rank") if isinstance(rank, Choice) else rank,
        iteration=_pick(fault.iteration, fault, "iteration") if fault.iteration else None,
    )


def _pick(choice: Choice, fault: Fault, what: str) -> Choice:
    # A hash rather than `random`: the same on every version of Python.
    digest = hashlib.blake2b(f"{fault.seed}/{fault.id}/{what}".encode(), digest_size=8).digest()
    number = choice.low + int.from_bytes(digest, "big") % (choice.high - choice.low + 1)
    return Choice(number, number)
