"""Events of the journal and lines of the log about checkpoints."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from undaunted.base import ending
from undaunted.progress import api, writer

if TYPE_CHECKING:
    from undaunted.checkpointing.errors import CheckpointError, SaveError

log = logging.getLogger("undaunted.checkpointing")

# Set by `undaunted run` for its ranks.
_LAUNCHED = "UNDAUNTED_PAGE"
# The name of all events of checkpoints; their text begins with one of the words below.
EVENT = "checkpoint"


def saved(step: int, size: int, stall_s: float, write_s: float, total_s: float) -> None:
    """Tell that a checkpoint is committed; said by every rank, of its own part."""
    _event(
        f"saved step={step} bytes={size} stall_s={stall_s:.6f} write_s={write_s:.6f} "
        f"total_s={total_s:.6f}",
    )


def loaded(step: int, size: int, seconds: float) -> None:
    """Tell that a checkpoint was loaded."""
    _event(f"loaded step={step} bytes={size} seconds={seconds:.6f}")
    log.info("checkpoint of step %d loaded: %d bytes in %.2f s", step, size, seconds)


def rescued(step: int) -> None:
    """Tell that a copy which outlived its process has become a checkpoint."""
    _event(f"rescued step={step}")
    log.info("the copy of step %d, which was in memory only, is a checkpoint now", step)


def failed(step: int, error: CheckpointError, *, aloud: bool = True) -> None:
    """Tell that a checkpoint was not saved.

    Args:
        step: of training.
        error: why; all ranks put it into the journal.
        aloud: into the log as well: one rank for all.
    """
    _event(f"failed step={step} {error}")
    if aloud:
        log.warning("the checkpoint of step %d was not saved: %s", step, error)


def lost(error: SaveError) -> None:
    """Tell that the program ends without its last checkpoint: it fails, whatever it says itself."""
    log.error("%s", error)
    ending.fail()
    if _LAUNCHED in os.environ:
        writer.current.record_error(error)


def skipped(step: int, why: str, *, aloud: bool = True) -> None:
    """Tell that a checkpoint cannot be used; see `failed`."""
    _event(f"skipped step={step} {why}")
    if aloud:
        log.warning("the checkpoint of step %d cannot be used: %s", step, why)


def doubted(step: int, taken: int, why: str) -> None:
    """Tell that a checkpoint is passed over since it leads to failures; the launcher says it."""
    _event(f"doubted step={step} taken={taken} {why}")


def deleted(step: int) -> None:
    """Tell that a checkpoint was deleted, as the rule of retention says."""
    _event(f"deleted step={step}")


def swept(name: str) -> None:
    """Tell that something unfinished was removed."""
    log.info("removed what an earlier run has left unfinished: %s", name)


def _event(text: str) -> None:
    """Put an event into the journal of the run, where there is one."""
    if _LAUNCHED in os.environ:
        api.event(EVENT, text)
