# Made from names/*.yaml by `make generated`.
"""Checkpoints on the nodes' own disks."""

from __future__ import annotations

from undaunted.integrations.lightning.local_checkpoint import (
    LOCAL_CKPT_OPTS_KEY as LOCAL_CKPT_OPTS_KEY,
)
from undaunted.integrations.lightning.local_checkpoint import (
    HierarchicalCheckpointIO as HierarchicalCheckpointIO,
)
from undaunted.integrations.lightning.local_checkpoint import (
    LocalCheckpointCallback as LocalCheckpointCallback,
)
