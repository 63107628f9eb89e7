"""Aborting a rank's communication with others, so that its main thread comes back.

Runs in another thread, while the main thread may be blocked in a collective. No error in here
is fatal: if something cannot be aborted, it is logged, and the hard timeout ends the rank.
"""

from __future__ import annotations

import abc
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.attribution.flight import recorder
from undaunted.inprocess.communication import c10d, creation, registry
from undaunted.journal import files

if TYPE_CHECKING:
    from undaunted.inprocess.state import FrozenState

_DUMP_DEADLINE_S = 10.0

# Set once groups of this process have been aborted. Ranks may have other numbers from then on than
# the ones by which the agent knows them: recordings of such a process count for no verdict.
aborted = threading.Event()


class Abort(abc.ABC):
    """Ends the function's communication with other ranks.

    Called in every rank when an iteration is stopped, before the function is interrupted.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Abort, and return ``state``."""


class AbortTorchDistributed(Abort):
    """Aborts collectives of all process groups, and destroys the groups.

    Afterwards `init_process_group` works again in the same process.

    Args:
        torch_fr_trace_path: directory for the records of the Flight Recorder. They are written
            before the abort if ``TORCH_FR_BUFFER_SIZE`` or ``TORCH_NCCL_TRACE_BUFFER_SIZE`` > 0.
            None = the value of ``NVRX_FR_TRACE_PATH``, else nothing is written.
    """

    def __init__(self, torch_fr_trace_path: str | None = None) -> None:
        self.torch_fr_trace_path = torch_fr_trace_path

    def __call__(self, state: FrozenState) -> FrozenState:
        """Abort all process groups of this process."""
        self._dump(state)
        aborted.set()
        if creation.forbid():
            registry.run("Abort of the making of process groups", creation.abort)
        registry.abort(c10d.backends())  # none is made any more
        if c10d.has_groups():
            registry.run("Destruction of process groups", c10d.destroy_groups)
        recorder.forget()
        return state

    def _dump(self, state: FrozenState) -> None:
        path = self.torch_fr_trace_path or os.environ.get("NVRX_FR_TRACE_PATH")
        if not path or not c10d.is_initialized() or not recorder.is_on(os.environ):
            return
        rank = state.rank if state.active_rank is None else state.active_rank
        registry.run(
            f"Dump of the Flight Recorder to {path}",
            lambda: dump_flight_recorder(path, state.iteration, rank),
            _DUMP_DEADLINE_S,
        )


class AbortTransformerEngine(Abort):
    """Releases the user buffers and the FP8 state that TransformerEngine keeps of the groups.

    Must run after the groups were aborted: in a `Compose`, it comes before `AbortTorchDistributed`.
    Does nothing where TransformerEngine was not imported.
    """

    def __call__(self, state: FrozenState) -> FrozenState:
        """Release them."""
        registry.run("Release of TransformerEngine's buffers", _release_transformer_engine)
        return state


class AbortPersistentCheckpointProcesses(Abort):
    """Ends worker processes of asynchronous checkpoints that outlive one save.

    These are the writers of ``undaunted.checkpointing``: of every `Checkpointer`, local manager and
    `AsyncCallsQueue`. Unfinished saves are dropped.
    """

    def __call__(self, state: FrozenState) -> FrozenState:
        """End the workers."""
        known: Any = sys.modules.get("undaunted.checkpointing.aborting")
        if known is not None:  # the program has imported something that saves
            registry.run("End of checkpoint workers", known.abort_all)
        return state


def _release_transformer_engine() -> None:
    base: Any = sys.modules.get("transformer_engine.pytorch.module.base")
    if hasattr(base, "destroy_ub"):
        base.destroy_ub()
    # Its home has moved between versions.
    for name in ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8"):
        manager = getattr(sys.modules.get(name), "FP8GlobalStateManager", None)
        if manager is not None:
            manager.reset()
            return


_log = logging.getLogger("undaunted")

MAX_DUMP_BYTES = 64 * 1024 * 1024


def dump_path(directory: str, iteration: int, rank: int) -> Path:
    """Return where the dump of a rank goes: ``DIRECTORY/iter_ITERATION/_dump_RANK.json``."""
    return Path(directory) / f"iter_{iteration}" / f"_dump_{rank}.json"


def dump_flight_recorder(directory: str, iteration: int, rank: int) -> None:
    """Write this rank's records as JSON, without stacks; nothing where torch records nothing.

    Raises:
        OSError: the file cannot be written.
    """
    found = recorder.dump(empty=True)
    if found is None:
        return
    records = msgspec.json.encode(found)
    if len(records) > MAX_DUMP_BYTES:
        _log.warning(
            "The Flight Recorder holds %d bytes, more than %d: not written. Lower "
            "TORCH_FR_BUFFER_SIZE",
            len(records),
            MAX_DUMP_BYTES,
        )
        return
    files.replace_text(os, str(dump_path(directory, iteration, rank)), records.decode())
