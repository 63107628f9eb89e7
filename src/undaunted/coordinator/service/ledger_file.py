"""The ledger on disk: written by a thread that may wait for it, read at the start."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.ids import file_name
from undaunted.coordinator.protocol import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_BYTES = 4 * 1024 * 1024
_LAST_WRITE_S = 2.0


def _unheard(version: int) -> None:
    """Nobody wants to know."""
    del version


class LedgerFile:
    """Keeps the newest ledger; one that is replaced before it was written is never written.

    Args:
        directory: of the run; the file in it is replaced atomically, mode 0600.
        endpoint: where the job meets, "" = nowhere in particular; see `name`.
        say: shows a line when the disk fails; called in the thread.
    """

    def __init__(self, directory: str, endpoint: str, say: Callable[[str], None]) -> None:
        self._directory, self._endpoint = directory, endpoint
        self._path = Path(directory, name(endpoint))
        self._changed = threading.Condition()
        self._next: tuple[Ledger, Callable[[int], object]] | None = None
        self._closing = False
        self._say, self._problem = say, ""
        self._thread: threading.Thread | None = None

    def read(self) -> Ledger | None:
        """See `read`."""
        return read(self._directory, self._endpoint)

    def keep(self, ledger: Ledger, written: Callable[[int], object] = _unheard) -> None:
        """Have it written soon; returns at once.

        Args:
            ledger: the newest.
            written: called in the thread with its version, once it is, or cannot be.
        """
        with self._changed:
            self._next = ledger, written
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, *, remove: bool = False) -> None:
        """Write what is left, for two seconds at most; ``remove`` it if the job is over."""
        with self._changed:
            self._closing = True
            if remove:
                self._next = None
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_LAST_WRITE_S)
        if remove:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._next is None and not self._closing:
                    self._changed.wait()
                following, self._next = self._next, None
            if following is None:
                return
            ledger, written = following
            try:
                self._write(ledger)
                self._problem = ""
            except OSError as error:
                self._note(error.strerror or str(error))
            written(ledger.version)

    def _note(self, problem: str) -> None:
        """Say why it cannot be written, once."""
        known, self._problem = self._problem, problem
        if problem != known:
            self._say(
                f"the state of the job cannot be written to {self._path}: {problem}; as long as "
                "this launcher lives, that changes nothing"
            )

    def _write(self, ledger: Ledger) -> None:
        temporary = self._path.with_name(f".{self._path.name}-{os.getpid()}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(temporary, flags, 0o600)
            with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
                file.write(msgspec.json.encode(ledger))
                file.flush()
                os.fsync(fd)
            temporary.replace(self._path)
            self._sync_name()
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _sync_name(self) -> None:
        """After a power failure the name would stand for the older ledger otherwise."""
        fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def name(endpoint: str) -> str:
    """Name the file: jobs that meet elsewhere may use the same directory, even the same run id."""
    return f"coordinator-{file_name(endpoint)}.json" if endpoint else "coordinator.json"


def read(directory: str, endpoint: str) -> Ledger | None:
    """Return the ledger that an earlier coordinator of this run has left, None = there is none.

    Raises:
        ValueError: there is a file, but no ledger in it.
    """
    path = Path(directory, name(endpoint))
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path} is no ledger: more than {_MOST_BYTES} bytes")
    try:
        return msgspec.json.decode(content, type=Ledger)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is no ledger ({error}); remove it to begin anew") from None
