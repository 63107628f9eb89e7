"""Whether all ranks mean the same by a name that is saved once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.checkpoint.planner import WriteItemType

from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.checkpoint.planner import SavePlan, WriteItem

# How many names and ranks a message lists.
_NAMED = 5


def check_plans(plans: Sequence[SavePlan]) -> None:
    """Look for names under which ranks have different things.

    Of a tensor that is in parts this is the whole one. Values other than tensors are not compared.

    Args:
        plans: of all ranks, in their order, before they are decided on.

    Raises:
        SaveError: names what differs, and the ranks.
    """
    first: dict[str, str | tuple[str, object, object]] = {}
    different: dict[str, None] = {}
    for plan in plans:
        for item in plan.items:
            kind = _kind(item)
            if first.setdefault(item.index.fqn, kind) != kind:
                different[item.index.fqn] = None
    if different:
        names = list(different)
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        told = "; ".join(_told(plans, name) for name in names[:_NAMED])
        raise SaveError(
            f"ranks have different things under one name: {told}{more}. What all ranks have under "
            "one name is saved once: give what differs from rank to rank a name for each rank",
            _ranks_of(plans, names[0]),
        )


def _kind(item: WriteItem) -> str | tuple[str, object, object]:
    data = item.tensor_data
    if item.type == WriteItemType.BYTE_IO or data is None:
        return "no tensor"
    form = "a part of a tensor" if item.type == WriteItemType.SHARD else "a tensor"
    return form, data.size, data.properties.dtype


def _told(plans: Sequence[SavePlan], name: str) -> str:
    ranks: dict[str | tuple[str, object, object], list[int]] = {}
    for rank, plan in enumerate(plans):
        for kind in {_kind(item) for item in plan.items if item.index.fqn == name}:
            ranks.setdefault(kind, []).append(rank)
    return f"{name} is " + ", ".join(
        f"{_text(kind)} on {_listed(on)}" for kind, on in ranks.items()
    )


def _text(kind: str | tuple[str, object, object]) -> str:
    if isinstance(kind, str):
        return kind
    form, size, dtype = kind
    return f"{form} {str(dtype).removeprefix('torch.')} {tuple(size)}"  # type: ignore[arg-type]


def _listed(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:_NAMED]))}{more}"


def _ranks_of(plans: Sequence[SavePlan], name: str) -> list[int]:
    found = (rank for rank, p in enumerate(plans) if any(i.index.fqn == name for i in p.items))
    return list(found)
