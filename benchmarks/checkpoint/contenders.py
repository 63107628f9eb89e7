"""Who is compared: each saves a state to a folder and loads it again.

A save has two times: how long the caller is stopped, and when the checkpoint is complete on disk.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from benchmarks.nvidia import has_nvrx
from undaunted.checkpointing.checkpointer import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

State = dict[str, Any]
Times = tuple[float, float]


class Contender(Protocol):
    """One way to save and load."""

    def save(self, state: State, number: int) -> Times:
        """Return the seconds until the call was back, and until everything was on disk."""

    def load(self, state: State, number: int) -> float:
        """Return the seconds of loading what was saved with this number."""

    def close(self) -> None:
        """Give everything back."""


class Undaunted:
    """Ours: asynchronous, with checksums verified on load; memory is touched before the first."""

    def __init__(self, folder: Path) -> None:
        self._checkpoints = Checkpointer(folder, keep=1)

    def save(self, state: State, number: int) -> Times:
        if number == 0:
            self._checkpoints.warm_up(state)
            _together()  # ranks that wait for the slowest are not what is measured
        began = time.perf_counter()
        self._checkpoints.save(number, state)
        stall = time.perf_counter() - began
        self._checkpoints.wait()
        return stall, time.perf_counter() - began

    def load(self, state: State, number: int) -> float:
        began = time.perf_counter()
        self._checkpoints.load(state, number)
        return time.perf_counter() - began

    def close(self) -> None:
        self._checkpoints.close()


class TorchSave:
    """torch.save and torch.load, one file per rank, synced."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{_rank()}.pt"

    def save(self, state: State, number: int) -> Times:  # noqa: ARG002 - the protocol's
        local = {name: _local(tensor) for name, tensor in state.items()}
        began = time.perf_counter()
        with self._path.open("wb") as file:
            torch.save(local, file)
            file.flush()
            os.fsync(file.fileno())
        _together()
        seconds = time.perf_counter() - began
        return seconds, seconds

    def load(self, state: State, number: int) -> float:  # noqa: ARG002 - the protocol's
        began = time.perf_counter()
        for name, tensor in torch.load(self._path, weights_only=True).items():
            _local(state[name]).copy_(tensor)
        _together()
        return time.perf_counter() - began

    def close(self) -> None:
        pass


class TorchMapped(TorchSave):
    """torch.save, and torch.load of a mapped file: tensors are copied from the mapping."""

    def load(self, state: State, number: int) -> float:  # noqa: ARG002 - the protocol's
        began = time.perf_counter()
        for name, tensor in torch.load(self._path, weights_only=True, mmap=True).items():
            _local(state[name]).copy_(tensor)
        _together()
        return time.perf_counter() - began


class Safetensors(TorchSave):
    """safetensors, one file per rank, synced."""

    def save(self, state: State, number: int) -> Times:  # noqa: ARG002 - the protocol's
        from safetensors.torch import save_file

        local = {name: _local(tensor) for name, tensor in state.items()}
        began = time.perf_counter()
        save_file(local, self._path)
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        _together()
        seconds = time.perf_counter() - began
        return seconds, seconds

    def load(self, state: State, number: int) -> float:  # noqa: ARG002 - the protocol's
        from safetensors import safe_open

        began = time.perf_counter()
        with safe_open(self._path, framework="pt") as file:
            for name, tensor in state.items():
                _local(tensor).copy_(file.get_tensor(name))
        _together()
        return time.perf_counter() - began


class Dcp:
    """torch.distributed.checkpoint, which stops the caller until all is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _target(self, number: int) -> Path:
        if _rank() == 0:
            shutil.rmtree(self._folder / str(number - 1), ignore_errors=True)
        return self._folder / str(number)

    def _writer(self, number: int) -> dcp.FileSystemWriter:
        return dcp.FileSystemWriter(self._target(number), thread_count=2)

    def save(self, state: State, number: int) -> Times:
        began = time.perf_counter()
        dcp.save(state, storage_writer=self._writer(number), no_dist=_world() == 1)
        seconds = time.perf_counter() - began
        return seconds, seconds

    def load(self, state: State, number: int) -> float:
        began = time.perf_counter()
        dcp.load(state, checkpoint_id=self._folder / str(number), no_dist=_world() == 1)
        return time.perf_counter() - began

    def close(self) -> None:
        pass


class DcpAsyncPlain(Dcp):
    """dcp.async_save as it comes."""

    def save(self, state: State, number: int) -> Times:
        began = time.perf_counter()
        done = dcp.async_save(state, storage_writer=self._writer(number), no_dist=_world() == 1)
        stall = time.perf_counter() - began
        done.result()  # type: ignore[union-attr]
        return stall, time.perf_counter() - began


class DcpAsync(Dcp):
    """dcp.async_save, with a stager that is kept, so that its memory is warm."""

    def __init__(self, folder: Path, how: AsyncCheckpointerType) -> None:
        super().__init__(folder)
        self._how = how
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=how is AsyncCheckpointerType.PROCESS,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )

    def save(self, state: State, number: int) -> Times:
        began = time.perf_counter()
        done = dcp.async_save(
            state,
            storage_writer=self._writer(number),
            async_stager=self._stager,
            async_checkpointer_type=self._how,
            no_dist=_world() == 1 and self._how is AsyncCheckpointerType.THREAD,
        )
        stall = time.perf_counter() - began
        done.result()  # type: ignore[union-attr]
        return stall, time.perf_counter() - began

    def close(self) -> None:
        self._stager.close()


def available(device: str) -> dict[str, Callable[[Path], Contender]]:
    """Return the contenders that run here for tensors of a device, by name; ours is first."""
    warnings.filterwarnings("ignore")
    found: dict[str, Callable[[Path], Contender]] = {
        "undaunted": Undaunted,
        "torch.save": TorchSave,
        "torch.load mmap": TorchMapped,
        "dcp.save": Dcp,
    }
    if importlib.util.find_spec("safetensors") is not None:
        found["safetensors"] = Safetensors
    if device == "cuda":  # before 2.13 torch closes a stager after its first save
        return found | {"dcp.async_save": DcpAsyncPlain}
    found["dcp.async_save thread"] = partial(DcpAsync, how=AsyncCheckpointerType.THREAD)
    if dist.is_initialized():  # torch's process needs a group
        found["dcp.async_save process"] = partial(DcpAsync, how=AsyncCheckpointerType.PROCESS)
    if has_nvrx():
        from benchmarks.checkpoint.nvrx import Nvrx

        found["NVRx"] = Nvrx
    return found


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _together() -> None:
    if dist.is_initialized():
        dist.barrier()
