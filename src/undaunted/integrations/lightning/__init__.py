"""Adapter to Lightning: `UndauntedCallback` and `last_checkpoint` are all that a script needs.

    from undaunted.integrations.lightning import UndauntedCallback, last_checkpoint

    trainer = Trainer(callbacks=[UndauntedCallback(), ModelCheckpoint(dirpath="checkpoints")])
    trainer.fit(model, ckpt_path=last_checkpoint("checkpoints"))

The names about local checkpoints are those of NVRx. docs/lightning.md says more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from undaunted.integrations.lightning.background import (
        BackgroundCheckpointIO as BackgroundCheckpointIO,
    )
    from undaunted.integrations.lightning.callback import UndauntedCallback as UndauntedCallback
    from undaunted.integrations.lightning.checkpoints import last_checkpoint as last_checkpoint
    from undaunted.integrations.lightning.loader import LoaderCallback as LoaderCallback
    from undaunted.integrations.lightning.local_checkpoint import (
        LOCAL_CKPT_OPTS_KEY as LOCAL_CKPT_OPTS_KEY,
    )
    from undaunted.integrations.lightning.local_checkpoint import (
        HierarchicalCheckpointIO as HierarchicalCheckpointIO,
    )
    from undaunted.integrations.lightning.local_checkpoint import (
        LocalCheckpointCallback as LocalCheckpointCallback,
    )

_MODULES = {
    "BackgroundCheckpointIO": "background",
    "UndauntedCallback": "callback",
    "LOCAL_CKPT_OPTS_KEY": "local_checkpoint",
    "HierarchicalCheckpointIO": "local_checkpoint",
    "LoaderCallback": "loader",
    "LocalCheckpointCallback": "local_checkpoint",
    "last_checkpoint": "checkpoints",
}

__all__ = [
    "LOCAL_CKPT_OPTS_KEY",
    "BackgroundCheckpointIO",
    "HierarchicalCheckpointIO",
    "LoaderCallback",
    "LocalCheckpointCallback",
    "UndauntedCallback",
    "last_checkpoint",
]

__getattr__ = lazy_names(__name__, _MODULES)
