"""Plans and results as bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint import DefaultSavePlanner, SavePlan  # noqa: E402
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta  # noqa: E402
from torch.distributed.checkpoint.storage import WriteResult  # noqa: E402

from undaunted.checkpointing.async_ckpt import exchange  # noqa: E402
from undaunted.checkpointing.async_ckpt.ranks import Ranks  # noqa: E402
from undaunted.checkpointing.dcp.torch_private import storage_info  # noqa: E402
from undaunted.checkpointing.errors import SaveError  # noqa: E402
from undaunted.checkpointing.format.manifest import File  # noqa: E402

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class OwnPlan(SavePlan):  # type: ignore[misc]
    own: int = 0


def plan(**state: Any) -> Any:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, StorageMeta(), is_coordinator=True)
    return planner.create_local_plan()


def test_results_arrive_as_they_were() -> None:
    results = [
        WriteResult(MetadataIndex("a", torch.Size([2, 0]), 1), 9, storage_info("f", 64, 9)),
        WriteResult(MetadataIndex("b"), 3, storage_info("f", 128, 3)),
    ]
    files = {"f": File(size=131, crc32="00000001")}
    assert exchange.decode_report(exchange.encode_report(results, files)) == (results, files)


def test_plans_with_more_than_plain_data_are_not_encoded() -> None:
    assert exchange.encode_plan(plan(a=torch.ones(1))) is not None
    assert exchange.encode_plan(OwnPlan([])) is None
    assert exchange.encode_plan(SavePlan([], planner_data={"x": object()})) is None


@pytest.mark.parametrize("plain", [True, False])
def test_a_decided_plan_has_its_prefix(plain: bool) -> None:
    local = plan(a=torch.ones(1), b=torch.ones(1))
    encoded = exchange.encode_plan(local) if plain else None

    def decide(plans: list[Any]) -> list[Any]:
        return [replace(p, items=p.items[:1], storage_data=exchange.Prefix("p_")) for p in plans]

    decided = exchange.plan_together(Ranks(), local, encoded, decide)
    assert [item.index.fqn for item in decided.items] == ["a"]
    assert decided.storage_data.prefix == "p_"


@pytest.mark.parametrize("plain", [True, False])
def test_a_planner_that_changes_the_list_of_plans(plain: bool) -> None:
    """That of torch 2.6 did."""
    local = plan(a=torch.ones(1), b=torch.ones(1))
    encoded = exchange.encode_plan(local) if plain else None

    def decide(plans: list[Any]) -> list[Any]:
        plans[0] = replace(plans[0], items=plans[0].items[1:])
        return plans

    decided = exchange.plan_together(Ranks(), local, encoded, decide)
    assert [item.index.fqn for item in decided.items] == ["b"]


def test_a_coordinator_that_cannot_decide_says_why() -> None:
    def decide(plans: list[Any]) -> list[Any]:
        raise ValueError("overlapping shards")

    local = plan(a=torch.ones(1))
    with pytest.raises(SaveError, match=r"rank 0 .*overlapping shards"):
        exchange.plan_together(Ranks(), local, exchange.encode_plan(local), decide)
