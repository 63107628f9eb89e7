"""The states of a restart as NVRx's monitors log them, for programs that have their own monitor.

Undaunted's do not use it: what they decide depends on pages and limits alone.
"""

from __future__ import annotations

import enum
from typing import Any


class InvalidStateTransitionException(Exception):  # noqa: N818 - the name users know
    """There is no way from this state to that one."""


class RankMonitorState(enum.Enum):
    """The progress of a restart."""

    UNINITIALIZED = 1
    INITIALIZE = 2
    HANDLING_START = 3
    HANDLING_PROCESSING = 4
    HANDLING_COMPLETED = 5
    FINALIZED = 6
    ABORTED = 7


_S = RankMonitorState
_NEXT = {
    _S.UNINITIALIZED: {_S.INITIALIZE, _S.FINALIZED},
    _S.INITIALIZE: {_S.HANDLING_START, _S.FINALIZED},
    _S.HANDLING_START: {_S.HANDLING_PROCESSING, _S.HANDLING_COMPLETED, _S.ABORTED},
    _S.HANDLING_PROCESSING: {_S.HANDLING_PROCESSING, _S.HANDLING_COMPLETED, _S.ABORTED},
    _S.HANDLING_COMPLETED: {_S.HANDLING_START, _S.FINALIZED},
    _S.FINALIZED: {_S.FINALIZED},
    _S.ABORTED: {_S.FINALIZED},
}
_WORDS = {
    _S.INITIALIZE: "initialize",
    _S.HANDLING_START: "handling stage=starting",
    _S.HANDLING_PROCESSING: "handling stage=processing",
    _S.HANDLING_COMPLETED: "handling stage=completed",
    _S.FINALIZED: "finalized",
    _S.ABORTED: "aborted",
}


class RankMonitorStateMachine:
    """Follows one monitor's restarts.

    Attributes:
        state: where it is.
    """

    def __init__(self, logger: Any) -> None:
        """Begin uninitialized.

        Args:
            logger: has ``log_restarter_event(text)``; a line for each change of state.
        """
        self.state = RankMonitorState.UNINITIALIZED
        self.logger = logger

    def is_restarting(self) -> bool:
        """Return whether a restart is under way."""
        return self.state in (_S.HANDLING_START, _S.HANDLING_PROCESSING)

    def handle_heartbeat_msg(self) -> None:
        """A heartbeat has come."""
        self._message()

    def handle_section_msg(self) -> None:
        """A section was opened or closed."""
        self._message()

    def handle_ipc_connection_lost(self) -> None:
        """The rank is gone."""
        if self.is_restarting():
            self.transition_to(_S.ABORTED)
        elif self.state in (_S.INITIALIZE, _S.HANDLING_COMPLETED):
            self.transition_to(_S.HANDLING_START)

    def periodic_restart_check(self) -> None:
        """It is time to say that the restart still goes on."""
        if self.is_restarting():
            self.transition_to(_S.HANDLING_PROCESSING)

    def handle_signal(self) -> None:
        """The monitor was told to end."""
        if self.is_restarting():
            self.transition_to(_S.ABORTED)
        elif self.state is not _S.UNINITIALIZED:
            self.transition_to(_S.FINALIZED)

    def can_transition_to(self, new_state: RankMonitorState) -> bool:
        """Return whether there is a way from here."""
        return new_state in _NEXT[self.state]

    def transition_to(self, new_state: RankMonitorState) -> None:
        """Change the state, and log it.

        Raises:
            InvalidStateTransitionException: there is no way from here.
        """
        if not self.can_transition_to(new_state):
            raise InvalidStateTransitionException(
                f"Invalid transition attempted from {self.state} to {new_state}"
            )
        self.state = new_state
        text = f"[NestedRestarter] name=[InJob] state={_WORDS[new_state]}"
        self.logger.log_restarter_event(text)

    def _message(self) -> None:
        if self.state is _S.UNINITIALIZED:
            self.transition_to(_S.INITIALIZE)
        elif self.is_restarting():
            self.transition_to(_S.HANDLING_COMPLETED)
        # A rank that came after one which had died early is a new beginning, not an error: with
        # NVRx this ended every later rank of the monitor.
        elif self.state is _S.ABORTED:
            self.state = _S.INITIALIZE
        elif self.state is _S.FINALIZED:
            raise InvalidStateTransitionException("a message came after the end")


__all__ = ["InvalidStateTransitionException", "RankMonitorState", "RankMonitorStateMachine"]
