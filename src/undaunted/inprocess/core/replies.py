"""Small answers of the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_WORLD_SIZE = 1 << 20


def dismiss(call: int, job_rank: int, text: str) -> c.ControllerCommand:
    """Tell one rank that it must not go on."""
    return c.Tell((job_rank,), m.Dismissed(call, job_rank, text))


def tell_outcome(
    outcome: m.Finished | m.End, job_ranks: Sequence[int]
) -> list[c.ControllerCommand]:
    """Tell ranks how a call has ended, as far as they have part in it."""
    part, rest = job_ranks, []
    if isinstance(outcome, m.Finished):
        part = [each for each in job_ranks if each in outcome.members]
        rest = [each for each in job_ranks if each not in outcome.members]
    told: list[c.ControllerCommand] = [c.Tell(tuple(part), outcome)] if part else []
    return told + [dismiss(outcome.call, each, "the others went on without it") for each in rest]


def about(job_rank: int, reason: m.Reason) -> m.Reason:
    """Nobody is lost in another's name."""
    if reason.job_rank == job_rank:
        return reason
    return msgspec.structs.replace(reason, job_rank=job_rank)


def refusal_of(enter: m.Enter) -> str:
    """What is wrong with it by itself, "" = nothing."""
    if enter.version != m.VERSION:
        return (
            f"it speaks version {enter.version} of the messages, the controller {m.VERSION}; "
            "install the same version everywhere"
        )
    if not 0 <= enter.job_rank < enter.world_size <= _MAX_WORLD_SIZE:
        return f"rank {enter.job_rank} of {enter.world_size} is impossible"
    return ""
