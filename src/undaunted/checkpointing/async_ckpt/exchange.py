"""Plans and results on their way between ranks: as MessagePack wherever that is possible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from undaunted.checkpointing.async_ckpt.ranks import Failure
from undaunted.checkpointing.dcp import plan_codec
from undaunted.checkpointing.dcp.torch_private import storage_info
from undaunted.checkpointing.errors import CheckpointError
from undaunted.checkpointing.format.manifest import File  # noqa: TC001 - a type of a field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.checkpointing.async_ckpt.ranks import Ranks


@dataclass(frozen=True)
class Prefix:
    """How names of a rank's files begin; what torch's own class has."""

    prefix: str


class _Part(msgspec.Struct, array_like=True, frozen=True):
    prefix: str | None
    plan: bytes


class _Result(msgspec.Struct, array_like=True, frozen=True):
    fqn: str
    at: tuple[int, ...] | None
    index: int | None
    name: str
    offset: int
    length: int


class _Report(msgspec.Struct, array_like=True, frozen=True):
    results: list[_Result]
    files: dict[str, File]


def encode_plan(plan: SavePlan) -> bytes | None:
    """Return a plan as bytes; None when there is something in it that is not plain data."""
    if type(plan) is not SavePlan:
        return None
    try:
        return plan_codec.encode_plan(plan)
    except CheckpointError:
        return None


def plan_together(
    ranks: Ranks,
    local: SavePlan,
    encoded: bytes | None,
    decide: Callable[[list[SavePlan]], Sequence[SavePlan]],
) -> SavePlan:
    """Return this rank's part of what the coordinator has decided from all local plans.

    Args:
        ranks: that plan.
        local: of this rank.
        encoded: the same as bytes, on all ranks; or None on all ranks, as there are planners whose
            plans cannot be encoded. These travel as torch sends objects, by pickle.
        decide: called on the coordinator.

    Raises:
        SaveError: on all ranks, when the coordinator could not decide.
    """
    plans: list[SavePlan] = []
    if encoded is not None:
        gathered = ranks.gather(encoded)
        plans = [plan_codec.decode_plan(plan) for plan in gathered or ()]
    elif ranks.use_dist:
        plans = gather_objects(ranks, local)
    else:
        plans = [local]
    decided: Sequence[SavePlan] = ()
    content = None
    failure = cause = None
    if ranks.is_coordinator:
        try:
            decided = decide(list(plans))  # planners may change the list, as that of torch 2.6 did
            content = _parts(plans, decided) if encoded is not None else None
        except Exception as error:  # noqa: BLE001 - told to all ranks, then raised
            failure, cause = Failure.of(error), error
    ranks.raise_failures(failure, "the save could not be planned", cause)
    if encoded is not None:
        parts = msgspec.msgpack.decode(ranks.broadcast(content), type=list[_Part])
        mine = parts[ranks.rank]
        plan = plan_codec.decode_part(local, mine.plan)
        return plan if mine.prefix is None else replace(plan, storage_data=Prefix(mine.prefix))
    return _scattered(ranks, decided) if ranks.use_dist else decided[0]


def _parts(plans: Sequence[SavePlan], decided: Sequence[SavePlan]) -> bytes:
    parts = []
    for local, final in zip(plans, decided, strict=True):
        prefix = getattr(final.storage_data, "prefix", None)
        bare = replace(final, storage_data=None) if prefix is not None else final
        parts.append(_Part(prefix, plan_codec.encode_part(local, bare)))
    return msgspec.msgpack.encode(parts)


def gather_objects(ranks: Ranks, value: Any) -> list[Any]:
    """Return the values of all ranks to the coordinator, by pickle, as torch does it."""
    there: list[Any] | None = [None] * ranks.world_size if ranks.is_coordinator else None
    dist.gather_object(value, there, dst=ranks.global_coordinator_rank, group=ranks.group)
    return there or []


def _scattered(ranks: Ranks, decided: Sequence[SavePlan]) -> SavePlan:
    mine: list[Any] = [None]
    all_plans = list(decided) if ranks.is_coordinator else None
    dist.scatter_object_list(mine, all_plans, src=ranks.global_coordinator_rank, group=ranks.group)
    plan: SavePlan = mine[0]
    return plan


def encode_report(results: Sequence[WriteResult], files: dict[str, File]) -> bytes:
    """Return what a rank has written as bytes."""
    wire = []
    for one in results:
        place = one.storage_data
        at = None if one.index.offset is None else tuple(one.index.offset)
        wire.append(
            _Result(
                one.index.fqn,
                at,
                one.index.index,
                place.relative_path,
                place.offset,
                place.length,
            )
        )
    return msgspec.msgpack.encode(_Report(wire, files))


def decode_report(content: bytes) -> tuple[list[WriteResult], dict[str, File]]:
    """Return what a rank has written."""
    report = msgspec.msgpack.decode(content, type=_Report)
    results = [
        WriteResult(
            MetadataIndex(one.fqn, one.at, one.index),
            one.length,
            storage_info(one.name, one.offset, one.length),
        )
        for one in report.results
    ]
    return results, report.files
