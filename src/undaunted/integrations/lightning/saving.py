"""Checkpoints that a callback saves itself, and those that are written behind its back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

_STOPPED = "stopped-step={}.ckpt"
_FINALIZE = "maybe_finalize_save_checkpoint"  # of NeMo's CheckpointIO


def folder_of(trainer: Any) -> str:
    """Return where the first ModelCheckpoint saves."""
    folders = [getattr(each, "dirpath", None) for each in trainer.checkpoint_callbacks]
    return str(next(filter(None, folders), trainer.default_root_dir))


def save_at_stop(trainer: Any, folder: str | PathLike[str]) -> None:
    """Save a checkpoint. Those of stops before it are deleted when it is whole."""
    new = Path(folder) / _STOPPED.format(trainer.global_step)
    trainer.save_checkpoint(new)
    wait_for_saves(trainer)
    for old in Path(folder).glob(_STOPPED.format("*")):
        if old != new:
            trainer.strategy.remove_checkpoint(old)


def saves_behind(trainer: Any) -> bool:
    """Whether checkpoints are written while training goes on, and finalized by all ranks."""
    return hasattr(trainer.strategy.checkpoint_io, _FINALIZE)


def wait_for_saves(trainer: Any) -> None:
    """Wait for what is written behind the back of the loop."""
    if saves_behind(trainer):
        getattr(trainer.strategy.checkpoint_io, _FINALIZE)(blocking=True)
    trainer.strategy.checkpoint_io.teardown()
