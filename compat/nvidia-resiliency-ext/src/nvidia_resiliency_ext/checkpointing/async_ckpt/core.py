# Made from names/*.yaml by `make generated`.
"""Saves that run beside training."""

from __future__ import annotations

from undaunted.checkpointing.async_ckpt.core import AsyncCaller as AsyncCaller
from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue as AsyncCallsQueue
from undaunted.checkpointing.async_ckpt.core import AsyncRequest as AsyncRequest
from undaunted.checkpointing.async_ckpt.core import PersistentAsyncCaller as PersistentAsyncCaller
from undaunted.checkpointing.async_ckpt.core import TemporalAsyncCaller as TemporalAsyncCaller
from undaunted.checkpointing.async_ckpt.core import abort_nvrx_checkpoint as abort_nvrx_checkpoint
