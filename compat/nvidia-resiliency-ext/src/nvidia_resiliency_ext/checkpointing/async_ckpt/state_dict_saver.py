# Made from names/*.yaml by `make generated`.
"""Plans and finalizes checkpoints that are written beside training."""

from __future__ import annotations

from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    CheckpointMetadataCache as CheckpointMetadataCache,
)
from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    get_metadata_caching_status as get_metadata_caching_status,
)
from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    init_checkpoint_metadata_cache as init_checkpoint_metadata_cache,
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
