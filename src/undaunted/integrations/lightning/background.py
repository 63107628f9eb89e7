"""`BackgroundCheckpointIO`: checkpoints of Lightning are written while training goes on."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.integrations.lightning.framework import of_lightning

if TYPE_CHECKING:
    from collections.abc import Callable


class BackgroundCheckpointIO(of_lightning("plugins.io", "CheckpointIO")):  # type: ignore[misc]
    """Writes in a thread: training stands still only while the state is copied to memory.

    Checkpoints become whole in order, and exist under their names only then. One that a callback
    has deleted goes when those that were saved before are whole, and stays if one of them failed.
    A save waits for the one before, and raises what that one raised, as the end of a `fit` does.

    Args:
        checkpoint_io: writes the files; None = Lightning's `TorchCheckpointIO`.
        timeout: seconds that a wait for what is being written may last.

    Raises:
        ImportError: Lightning is not there.
        ValueError: a value cannot be meant.
    """

    def __init__(self, checkpoint_io: Any = None, *, timeout: float = 600.0) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}: give seconds, more than 0")
        super().__init__()
        self._io = checkpoint_io or of_lightning("plugins.io", "TorchCheckpointIO")()
        self._timeout_s = timeout
        self._last: threading.Thread | None = None  # of a chain: each waits for the one before
        self._error: Exception | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Copy the checkpoint to memory, and begin to write it.

        Raises:
            TimeoutError: the one before is still being written.
        """
        self._settle()
        from undaunted.checkpointing.memory.copy import host_copy  # imports torch

        copy = host_copy(checkpoint, deep=True)
        self._then(f"writes {path}", lambda: self._save(copy, os.fspath(path), storage_options))

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint after what was saved before is whole."""
        self._then(f"removes {path}", lambda: self._io.remove_checkpoint(path))

    def load_checkpoint(self, path: str | os.PathLike[str], *args: Any, **options: Any) -> Any:
        """Load a checkpoint, which may be one that is being written."""
        self._settle()
        return self._io.load_checkpoint(path, *args, **options)

    def teardown(self) -> None:
        """Wait until all is written."""
        self._settle()
        self._io.teardown()

    def _then(self, name: str, action: Callable[[], object]) -> None:
        """Do this in a thread after all before; not after one that failed."""
        before = self._last

        def run() -> None:
            if before is not None:
                before.join()
            if self._error is None:
                try:
                    action()
                except Exception as error:  # noqa: BLE001 - raised where it is waited for
                    self._error = error

        self._last = threading.Thread(target=run, name=name, daemon=True)
        self._last.start()

    def _save(self, checkpoint: dict[str, Any], path: str, storage_options: Any) -> None:
        if "://" in path:  # files there begin to exist when they are whole
            self._io.save_checkpoint(checkpoint, path, storage_options)
            return
        part = Path(f"{path}.part")
        self._io.save_checkpoint(checkpoint, str(part), storage_options)
        if part.is_file():
            with part.open("rb") as file:
                os.fsync(file.fileno())
        part.replace(path)

    def _settle(self) -> None:
        if self._last is not None:
            self._last.join(self._timeout_s)
            if self._last.is_alive():
                raise TimeoutError(
                    f"the thread that {self._last.name} has not ended in {self._timeout_s:g} s: "
                    "is the storage stuck? BackgroundCheckpointIO(timeout=...) may be longer"
                )
        self._last, error, self._error = None, self._error, None
        if error is not None:
            raise error
