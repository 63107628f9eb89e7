"""NVIDIA Resiliency Extension, where it is importable: its asynchronous saves by a forked process.

Its code asks for CUDA wherever it goes; without a GPU, the three calls it makes are answered for
the CPU. Its other way, a process that is kept, saves tensors of the CPU without copying them and is
not compared.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp

from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)

if TYPE_CHECKING:
    from pathlib import Path

if not torch.cuda.is_available():
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.set_device = lambda *_: None


class Nvrx:
    """Saves as Megatron-LM does with NVRx."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue = AsyncCallsQueue(persistent=False)

    def save(self, state: dict[str, Any], number: int) -> tuple[float, float]:
        target = self._folder / str(number)
        target.mkdir(exist_ok=True)
        began = time.perf_counter()
        writer = FileSystemWriterAsync(target, thread_count=2)
        planner = dcp.DefaultSavePlanner()
        plan = save_state_dict_async_plan(state, writer, None, 0, planner=planner)
        function, preload, arguments = writer.get_save_function_and_args()
        finish = lambda: save_state_dict_async_finalize(*plan[:3])  # noqa: E731 - theirs is one, too
        self._queue.schedule_async_request(
            AsyncRequest(function, arguments, [finish], preload_fn=preload)
        )
        stall = time.perf_counter() - began
        self._queue.maybe_finalize_async_calls(blocking=True)
        return stall, time.perf_counter() - began

    def load(self, state: dict[str, Any], number: int) -> float:
        began = time.perf_counter()
        dcp.load(state, checkpoint_id=self._folder / str(number))
        return time.perf_counter() - began

    def close(self) -> None:
        self._queue.close()
