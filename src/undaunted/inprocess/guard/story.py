"""A state machine with its story: its last events, written to a file when it raises."""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from undaunted.base.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = 64 * 1024 * 1024  # bytes of the file


class Core(Protocol):
    """A state machine of `undaunted.inprocess.core`."""

    def handle(self, event: Any, now: int) -> list[Any]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""


M = TypeVar("M", bound=Core)


class Story(Generic[M]):
    """Feeds a state machine, at the time of the running loop.

    Attributes:
        core: the state machine; nobody else feeds it.
    """

    def __init__(self, name: str, core: M, say: Callable[[str], None]) -> None:
        """Begin.

        Args:
            name: of the state machine, as `python -m simulator --replay` knows it.
            core: just made.
            say: called with a line that names the file.
        """
        self.core = core
        self._name = name
        self._say = say
        self._recent = Recent({})

    def handle(self, event: object) -> list[Any]:
        """Feed an event; return the commands it causes.

        Raises:
            Exception: a bug of the state machine; its story is in a file.
        """
        now = round(asyncio.get_running_loop().time() * 1e9)
        try:
            commands = self.core.handle(event, now)
        except Exception as error:
            self._recent.note(now, event, ())
            self._write(error)
            raise
        self._recent.note(now, event, commands)
        return commands

    def _write(self, error: Exception) -> None:
        lines = b"\n".join(self._recent.lines(self._name, _LONGEST))
        try:
            fd, path = tempfile.mkstemp(prefix=f"undaunted-{self._name}-", suffix=".jsonl")
            with os.fdopen(fd, "wb") as file:
                file.write(lines + b"\n")
        except OSError as problem:
            path = f"no file ({problem.strerror})"
        self._say(
            f"internal error of the {self._name} of in-process restart: {error!r}; its last events "
            f"are in {path}: please report it with this file, which `python -m simulator --replay` "
            "repeats"
        )
