"""What is used again by the next save, as long as no rank's state changes its structure."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan

    from undaunted.checkpointing.async_ckpt.ranks import Ranks


class CheckpointMetadataCache:
    """Of one kind of state.

    Whether something is used again is decided for every save, by all ranks together: each compares
    the plan it has made anew with the one it has kept, and one that differs has all plan anew. So
    do other ranks than those that made the kept plans.
    """

    def __init__(self) -> None:
        self._local: SavePlan | None = None
        self._place: tuple[int, ...] = ()
        self._central: SavePlan | None = None
        self._metadata: Metadata | None = None
        self._loaded_plans: list[SavePlan] | None = None
        self._reused = False
        self._reused_loaded = False

    def set_cached_global_metadata(self, cached_global_metadata: Metadata | None) -> None:
        """Remember the metadata of a checkpoint that was loaded, with the plans in it if any."""
        self._metadata = cached_global_metadata
        self._loaded_plans = getattr(cached_global_metadata, "all_local_plans", None)
        self._local = self._central = None

    def set_cache_metadata(
        self,
        central_plan: SavePlan | None,
        local_plan: SavePlan | None,
        global_metadata: Metadata | None,
        place: tuple[int, ...] = (),
    ) -> None:
        """Remember what was planned.

        Args:
            central_plan: what this rank writes.
            local_plan: what it has.
            global_metadata: None where this is no coordinator.
            place: among the ranks that planned, see `Ranks.place`.
        """
        self._central, self._local, self._place = central_plan, local_plan, place
        self._metadata = global_metadata
        self._loaded_plans = None

    def get_cache_metadata(
        self,
    ) -> tuple[SavePlan | None, SavePlan | None, Metadata | None, list[SavePlan] | None]:
        """Return the central plan, the local plan, the metadata, and plans that were loaded."""
        return self._central, self._local, self._metadata, self._loaded_plans

    def get_metadata_caching_status(self) -> tuple[bool, bool]:
        """Return whether the last save used plans of the one before, and plans of a loaded one."""
        return self._reused, self._reused_loaded

    def set_metadata_caching_status(self, reused: bool, reused_loaded: bool) -> None:
        """Remember what the last save did."""
        self._reused, self._reused_loaded = reused, reused_loaded

    def prepare_save_state_dict_ret(
        self, rank: int, coordinator: int, save_state_dict_ret: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Return what `save_state_dict_async_plan` has, with the kept metadata if it has none."""
        writer, metadata, *rest = save_state_dict_ret
        if metadata is None and rank == coordinator:
            metadata = self.copied_metadata()
        return (writer, metadata, *rest)

    def fits(self, local_plan: SavePlan, place: tuple[int, ...] = ()) -> bool:
        """Return whether this rank, at this place, may use the kept plan for what it saves now."""
        return self._central is not None and self._place == place and _same(self._local, local_plan)

    def copied_metadata(self) -> Metadata | None:
        """Return the kept metadata, to be completed for one save."""
        return copy.copy(self._metadata)


def verify_global_md_reuse(
    loaded_all_plans: list[SavePlan] | None, local_plan: SavePlan, rank: int, dist_wrapper: Ranks
) -> bool:
    """Return whether, on all ranks, a loaded checkpoint was planned as this one would be.

    Args:
        loaded_all_plans: of the loaded checkpoint, by rank.
        local_plan: of this rank, now.
        rank: of this process.
        dist_wrapper: all ranks; all of them call this.
    """
    same = (
        loaded_all_plans is not None
        and len(loaded_all_plans) == dist_wrapper.world_size
        and _same(loaded_all_plans[rank], _as_written(local_plan))
    )
    return dist_wrapper.least([same])[0] == 1


def _as_written(plan: SavePlan) -> SavePlan:
    """Return a plan without what `dcp.metadata.dumps` leaves out: strides, of torch 2.15."""
    try:
        items = [
            replace(
                item, tensor_data=replace(data, properties=replace(data.properties, strides=None))
            )
            if getattr(getattr(data := item.tensor_data, "properties", None), "strides", None)
            else item
            for item in plan.items
        ]
        return replace(plan, items=items)
    except Exception:  # noqa: BLE001 - as below
        return plan


def _same(one: SavePlan | None, other: SavePlan) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - planners may put anything into plans: then plan anew
        return False


_global: CheckpointMetadataCache | None = None


def init_checkpoint_metadata_cache(md: Metadata | None = None) -> None:
    """Begin anew with the cache that is used where none is given.

    Args:
        md: metadata of a checkpoint that was loaded.
    """
    global _global  # noqa: PLW0603 - there is one per process
    _global = CheckpointMetadataCache()
    if md is not None:
        _global.set_cached_global_metadata(md)


def the_cache() -> CheckpointMetadataCache:
    """Return the cache that is used where none is given."""
    if _global is None:
        init_checkpoint_metadata_cache()
    assert _global is not None
    return _global
