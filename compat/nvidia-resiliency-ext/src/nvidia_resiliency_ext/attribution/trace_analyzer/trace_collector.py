"""Writing what the Flight Recorder of this rank holds."""

from __future__ import annotations

import json
import logging
import os
import pickle
from abc import ABC, abstractmethod
from pathlib import Path

from undaunted.attribution.flight import recorder

_log = logging.getLogger(__name__)


class TraceCollector(ABC):
    """Writes traces of this rank into a directory.

    Args:
        path: the directory; it is made.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def collect(self) -> None:
        """Write them."""


class TorchFRTraceCollector(TraceCollector):
    """Writes ``PATH/_dump_RANK.json``, or without ``json`` a pickle ``PATH/_dump_RANK``.

    Args:
        path: the directory; it is made.
        json: False = a pickle of plain data, for programs that read nothing else.
    """

    def __init__(self, path: str, json: bool = True) -> None:
        super().__init__(path)
        self.json = json

    def collect(self) -> None:
        """Write the dump; a warning where torch records nothing.

        Raises:
            OSError: the file cannot be written.
        """
        found = recorder.dump()
        if found is None:
            _log.warning(
                "No dump was written to %s: the Flight Recorder of this process holds nothing; set "
                "TORCH_FR_BUFFER_SIZE=2000 before the first process group is made",
                self.path,
            )
            return
        data = json.dumps(found).encode() if self.json else pickle.dumps(found)
        _replace(Path(self.path) / f"_dump_{found['rank']}{'.json' if self.json else ''}", data)


def _replace(path: Path, data: bytes) -> None:
    """Write a whole file, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
