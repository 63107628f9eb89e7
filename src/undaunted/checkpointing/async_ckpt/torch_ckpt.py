"""`torch.save` beside training."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import torch

from undaunted.base.garbage import collection_paused
from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from undaunted.checkpointing.files import durable
from undaunted.checkpointing.files.direct import file_mode
from undaunted.checkpointing.memory.copy import host_copy


class TorchAsyncCheckpoint:
    """Saves states with `torch.save`, on a thread.

    Args:
        persistent_queue: False is deprecated and makes no difference.
    """

    def __init__(self, persistent_queue: bool = True) -> None:
        self._queue = AsyncCallsQueue(persistent=persistent_queue)

    def save(self, state_dict: Any, *args: Any, **kwargs: Any) -> None:
        """Do what `torch.save` does, here and now; a file has its former content or the new one.

        Args:
            state_dict: what is saved.
            *args: of `torch.save`: first of all the file.
            **kwargs: of `torch.save`.
        """
        _save(args, state_dict, kwargs)

    def async_save(self, state_dict: Any, *args: Any, **kwargs: Any) -> None:
        """Do it beside training: when this returns, the content is fixed.

        Tensors of devices are saved as tensors of the CPU.

        Args:
            state_dict: what is saved; other objects in it than tensors are copied as well.
            *args: of `torch.save`: first of all the file.
            **kwargs: of `torch.save`.
        """
        self._queue.schedule_async_request(
            AsyncRequest(
                collection_paused()(_save),
                (args, None, kwargs),
                [],
                preload_fn=lambda: host_copy(state_dict, deep=True),
            )
        )

    def finalize_async_save(
        self, blocking: bool = False, no_dist: bool = True, terminate: bool = False
    ) -> None:
        """Learn what has become of saves.

        Args:
            blocking: wait for all.
            no_dist: of this rank only; else all ranks must call this.
            terminate: close afterwards.

        Raises:
            SaveError: a save has failed.
        """
        self._queue.maybe_finalize_async_calls(blocking, no_dist=no_dist)
        if terminate:
            self.close()

    def close(self, abort: bool = False) -> None:
        """Wait for what was scheduled on this rank; or, to ``abort``, give it up.

        Raises:
            SaveError: a save has failed.
        """
        try:
            while self._queue.get_num_unfinalized_calls() and not abort:
                self._queue.maybe_finalize_async_calls(blocking=True, no_dist=True)
        finally:
            self._queue.close(abort=True)  # what is left after a failure


def _save(args: tuple[Any, ...], state_dict: Any, kwargs: dict[str, Any]) -> None:
    named = dict(kwargs)
    file, *others = args or (named.pop("f"),)
    if not isinstance(file, (str, os.PathLike)):
        torch.save(state_dict, file, *others, **named)
        return
    path = Path(file).absolute()
    temporary = path.with_name(f".{path.name}.tmp-{uuid.uuid4().hex[:8]}")
    with durable.replacing(str(path), str(temporary)):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file_mode())
        with open(fd, "wb") as stream:  # noqa: PTH123 - a descriptor
            torch.save(state_dict, stream, *others, **named)
            stream.flush()
            os.fsync(fd)
