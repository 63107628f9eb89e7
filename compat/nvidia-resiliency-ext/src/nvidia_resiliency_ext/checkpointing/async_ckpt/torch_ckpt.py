# Made from names/*.yaml by `make generated`.
"""`torch.save` beside training."""

from __future__ import annotations

from undaunted.checkpointing.async_ckpt.torch_ckpt import (
    TorchAsyncCheckpoint as TorchAsyncCheckpoint,
)
