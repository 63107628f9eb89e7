"""What is used again from one save to the next."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint import DefaultSavePlanner  # noqa: E402
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta  # noqa: E402

from undaunted.checkpointing.async_ckpt import state_dict_saver  # noqa: E402
from undaunted.checkpointing.async_ckpt.ranks import Ranks  # noqa: E402
from undaunted.checkpointing.async_ckpt.state_dict_saver import (  # noqa: E402
    CheckpointMetadataCache,
    init_checkpoint_metadata_cache,
    verify_global_md_reuse,
)

pytestmark = pytest.mark.torch


def plan(**state: Any) -> Any:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, StorageMeta(), is_coordinator=True)
    return planner.create_local_plan()


def test_a_plan_fits_only_what_it_was_made_for() -> None:
    cache = CheckpointMetadataCache()
    one = plan(a=torch.ones(2))
    assert not cache.fits(one)
    cache.set_cache_metadata(one, one, Metadata({}))
    assert cache.fits(plan(a=torch.zeros(2)))
    assert not cache.fits(plan(a=torch.ones(3)))
    assert not cache.fits(plan(a=torch.ones(2), b=torch.ones(2)))
    assert not cache.fits(plan())


def test_what_cannot_be_compared_does_not_fit() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    cache = CheckpointMetadataCache()
    cache.set_cache_metadata(Odd(), Odd(), None)  # type: ignore[arg-type]
    assert not cache.fits(plan())


def test_kept_metadata_are_copied_for_each_save() -> None:
    cache = CheckpointMetadataCache()
    cache.set_cache_metadata(plan(), plan(), Metadata({}))
    one, other = cache.copied_metadata(), cache.copied_metadata()
    assert one is not None
    assert one is not other
    returned = cache.prepare_save_state_dict_ret(0, 0, ("writer", None, "ranks"))
    assert returned[0::2] == ("writer", "ranks")
    assert returned[1] is not None
    assert cache.prepare_save_state_dict_ret(1, 0, ("writer", None, "ranks"))[1] is None


def test_plans_of_a_loaded_checkpoint_are_compared() -> None:
    cache = CheckpointMetadataCache()
    loaded = Metadata({})
    loaded.all_local_plans = [plan(a=torch.ones(2))]
    cache.set_cached_global_metadata(loaded)
    plans = cache.get_cache_metadata()[3]
    assert verify_global_md_reuse(plans, plan(a=torch.ones(2)), 0, Ranks())
    assert not verify_global_md_reuse(plans, plan(b=torch.ones(2)), 0, Ranks())
    assert not verify_global_md_reuse(None, plan(), 0, Ranks())
    assert not verify_global_md_reuse([*(plans or []), plan()], plan(a=torch.ones(2)), 0, Ranks())


def test_there_is_one_cache_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_dict_saver, "_global", None)
    first = state_dict_saver.the_cache()
    assert state_dict_saver.the_cache() is first
    loaded = Metadata({})
    init_checkpoint_metadata_cache(loaded)
    assert state_dict_saver.the_cache() is not first
    assert state_dict_saver.the_cache().get_cache_metadata()[2] is loaded
