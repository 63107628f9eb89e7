"""What the metadata of a checkpoint is made from, so that another process can make it later.

Rank 0 leaves a blueprint beside its copy in memory. When that process is dead, whoever has the
copies of all ranks can still write the checkpoint they are of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from torch.distributed.checkpoint.planner import SavePlan

from undaunted.checkpointing.dcp import items, metadata, plan_codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.checkpoint.metadata import Metadata


class _Blueprint(msgspec.Struct, array_like=True, frozen=True):
    """The metadata without places, and what each rank writes."""

    metadata: bytes
    plans: list[bytes]


def draw(overall: Metadata, files: Sequence[Sequence[items.Laid]]) -> bytes:
    """Return the blueprint of a checkpoint.

    Args:
        overall: what the planner has made.
        files: of all ranks, at most one each.
    """
    plans = [SavePlan([item for one in of for item in one.framed + one.others]) for of in files]
    return msgspec.msgpack.encode(
        _Blueprint(metadata.encode(overall, []), [plan_codec.encode_plan(plan) for plan in plans])
    )


def build(blueprint: bytes, reports: Sequence[bytes]) -> bytes:
    """Return the content of ``.metadata``.

    Args:
        blueprint: see :func:`draw`.
        reports: ``Staged.report`` of all ranks.

    Raises:
        CheckpointError: one of them is damaged.
        msgspec.DecodeError: likewise.
    """
    drawn = msgspec.msgpack.decode(blueprint, type=_Blueprint)
    overall = metadata.decode(drawn.metadata, "a copy in memory")
    plans = [plan_codec.decode_plan(plan) for plan in drawn.plans]
    return assemble(overall, [lay_out(rank, plan) for rank, plan in enumerate(plans)], reports)


def assemble(
    overall: Metadata, files: Sequence[Sequence[items.Laid]], reports: Sequence[bytes]
) -> bytes:
    """Return the content of ``.metadata`` from what is known of the files and from all reports."""
    pairs: list[tuple[items.Laid, list[tuple[int, int]]]] = []
    for laid, report in zip(files, reports, strict=True):
        places = msgspec.msgpack.decode(report, type=list[list[tuple[int, int]]])
        pairs += zip(laid, places, strict=True)
    return metadata.encode(overall, pairs)


def lay_out(rank: int, plan: SavePlan) -> list[items.Laid]:
    """Return the file that a rank writes, or none."""
    return [items.lay_out(f"__{rank}_0.distcp", plan.items)] if plan.items else []
