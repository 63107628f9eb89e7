"""Writes one checkpoint of a kind, with the undaunted that is on the path.

The archives beside it were made with it, one for the versions of each day whose files differ. The
kind `sharded` is for two ranks.

    python -m tests.checkpointing.written.write FOLDER single|sharded|async|local
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "uint16", "float8_e4m3fn",
)  # fmt: skip


def model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model and an optimizer whose values do not depend on the version of torch."""
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with torch.no_grad():
        for at, one in enumerate(made.state_dict().values()):
            one.copy_((torch.arange(one.numel()) + 10 * at).view(one.shape))
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.5)
    for parameter in made.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    optimizer.step()
    with torch.no_grad():
        for at, state in enumerate(optimizer.state_dict()["state"].values()):
            state["exp_avg"].fill_(at + 0.25)
            state["exp_avg_sq"].fill_(at + 0.5)
        for at, parameter in enumerate(made.parameters()):
            parameter.copy_((torch.arange(parameter.numel()) + 100 * at).view(parameter.shape))
    return made, optimizer


def tensors() -> dict[str, torch.Tensor]:
    """Return tensors of all types and of odd shapes."""
    made = {name: torch.arange(6).to(getattr(torch, name)).view(2, 3) for name in DTYPES}
    return {
        **made,
        "empty": torch.zeros(0, 2),
        "scalar": torch.tensor(7.0),
        "turned": torch.arange(6.0).view(2, 3).t(),
        "sparse": torch.eye(3).to_sparse(),
    }


def plain() -> dict[str, Any]:
    """Return what is no tensor."""
    return {
        "step": 7,
        "text": "words",
        "list": [1, {"a": 2.5}],
        "tuple": (1, "b"),
        "array": np.arange(3),
        "bytes": b"abc",
    }


def sharded() -> torch.Tensor:
    """Return the tensor that two ranks have in parts."""
    return torch.arange(20.0).view(5, 4)


def local() -> dict[str, Any]:
    """Return the state of a local checkpoint."""
    return {"weight": torch.arange(30.0), "step": 5, "n": [torch.ones(2), {"k": (1, "b")}]}


def write(folder: Path, kind: str) -> None:
    """Write a checkpoint."""
    if kind == "async":
        _write_async(folder)
    elif kind == "local":
        from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
        from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

        LocalCheckpointManager(folder, "s").save(BasicTensorAwareStateDict(local()), 1)
    else:
        from undaunted.checkpointing import Checkpointer

        if kind == "sharded":
            dist.init_process_group("gloo")
            mesh = init_device_mesh("cpu", (2,))
            parts = distribute_tensor(sharded(), mesh, [Shard(0)])
            state: dict[str, Any] = {"sharded": parts, "whole": torch.arange(4), "step": 7}
        else:
            module, optimizer = model()
            state = {"model": module, "optimizer": optimizer, "tensors": tensors(), **plain()}
        with Checkpointer(folder) as checkpoints:
            checkpoints.save(1, state)
            checkpoints.wait()


def _write_async(folder: Path) -> None:
    from undaunted.checkpointing.async_ckpt.core import AsyncRequest
    from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
    from undaunted.checkpointing.async_ckpt.state_dict_saver import (
        save_state_dict_async_finalize,
        save_state_dict_async_plan,
    )

    folder.mkdir(parents=True, exist_ok=True)
    writer = FileSystemWriterAsync(folder)
    state = {"weight": torch.arange(300.0), "bias": torch.ones(7), "step": 5}
    planned = save_state_dict_async_plan(state, writer)
    save, preload, arguments = writer.get_save_function_and_args()
    end = [partial(save_state_dict_async_finalize, *planned)]
    AsyncRequest(save, tuple(arguments), end, preload_fn=preload).execute_sync()


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
