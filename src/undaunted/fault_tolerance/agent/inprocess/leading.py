"""The controller of functions that are restarted in their processes, where a job is led."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator import protocol as p
    from undaunted.coordinator.wire.connection import Connection
    from undaunted.inprocess.core.commands import Note
    from undaunted.inprocess.guard.relay import RelayController


class Controlling:
    """See `BesideLeader`. Nothing is loaded before the first rank of the job calls a function.

    Args:
        notes: see `RelayController`.
        remark: shows a line.
    """

    def __init__(
        self,
        notes: Callable[[int, int], Callable[[Note], None]],
        remark: Callable[[str], None],
    ) -> None:
        self._notes, self._remark = notes, remark
        self._controller: RelayController | None = None

    def received(self, connection: Connection, aside: p.Aside) -> None:
        """See `BesideLeader`."""
        if self._controller is None:
            from undaunted.inprocess.guard.relay import RelayController

            self._controller = RelayController(self._notes, self._remark)
        self._controller.received(connection, aside)

    def closed(self, connection: Connection, reason: str, *, silent: bool) -> None:
        """See `BesideLeader`."""
        if self._controller is not None:
            self._controller.closed(connection, reason, silent=silent)

    def close(self) -> None:
        """See `BesideLeader`."""
        if self._controller is not None:
            self._controller.close()
