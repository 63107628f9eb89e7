"""Writes checkpoints of `torch.distributed.checkpoint` beside training.

`_results_queue` is what programs look for to end a manager process of NVRx's. There is no such
process here: it is None for ever.
"""

from __future__ import annotations

from undaunted.checkpointing.async_ckpt.filesystem_async import (
    FileSystemWriterAsync as FileSystemWriterAsync,
)
from undaunted.checkpointing.async_ckpt.filesystem_async import (
    get_write_results_queue as get_write_results_queue,
)

_get_write_results_queue = get_write_results_queue
_results_queue = None
