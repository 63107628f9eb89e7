"""Plans and finalizes checkpoints that are written beside training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.checkpointing.async_ckpt import state_dict_saver
from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    CheckpointMetadataCache as CheckpointMetadataCache,
)
from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    save_state_dict_async_finalize as save_state_dict_async_finalize,
)
from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    save_state_dict_async_plan as save_state_dict_async_plan,
)
from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    verify_global_md_reuse as verify_global_md_reuse,
)

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata


def init_checkpoint_metadata_cache(cached_global_metadata: Metadata | None = None) -> None:
    """Begin anew with the cache that is used where none is given.

    Args:
        cached_global_metadata: of a checkpoint that was loaded.
    """
    state_dict_saver.init_checkpoint_metadata_cache(cached_global_metadata)


def get_metadata_caching_status() -> tuple[bool, bool]:
    """Return whether the last save used plans of the one before, and plans of a loaded one."""
    return state_dict_saver.the_cache().get_metadata_caching_status()
