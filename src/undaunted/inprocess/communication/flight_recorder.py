"""Writing down what torch's Flight Recorder holds, before communicators are aborted."""

from __future__ import annotations

import importlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.journal import files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_log = logging.getLogger("nvrx")

MAX_BYTES = 64 * 1024 * 1024
# torch reads the first of these that it knows.
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def is_recording(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for a recorder of some size."""
    return any(environment.get(name, "").strip().lstrip("0").isdigit() for name in _SIZES)


def dump_path(directory: str, iteration: int, rank: int) -> Path:
    """Return where the dump of a rank goes: ``DIRECTORY/iter_ITERATION/_dump_RANK.json``."""
    return Path(directory) / f"iter_{iteration}" / f"_dump_{rank}.json"


def dump(directory: str, iteration: int, rank: int, backends: Collection[str]) -> None:
    """Write this rank's records as JSON, without stacks; nothing where torch records nothing.

    Raises:
        OSError: the file cannot be written.
    """
    records = _records(backends)
    if records is None:
        return
    if len(records) > MAX_BYTES:
        _log.warning(
            "The Flight Recorder holds %d bytes, more than %d: not written. Lower %s",
            len(records),
            MAX_BYTES,
            _SIZES[0],
        )
        return
    path = dump_path(directory, iteration, rank)
    files.replace_text(os, str(path), records.decode("utf-8", "replace"))


def _records(backends: Collection[str]) -> bytes | None:
    bindings = importlib.import_module("torch._C._distributed_c10d")
    names = ["_dump_fr_trace_json"]
    if "nccl" in backends:  # it has a recorder of its own
        names.insert(0, "_dump_nccl_trace_json")
    for name in names:
        function: Any = getattr(bindings, name, None)
        if function is not None:
            records: bytes = function(includeCollectives=True, onlyActive=False)
            return records
    return None
