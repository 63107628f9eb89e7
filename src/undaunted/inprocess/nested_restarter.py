"""Lines on standard output that tell a launcher above what in-process restart is doing.

``[NestedRestarter] name=[InProcess] state=handling stage=starting``: one rank writes them.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from undaunted.inprocess.abort import Abort
from undaunted.inprocess.completion import Completion
from undaunted.inprocess.initialize import Initialize
from undaunted.inprocess.terminate import Terminate

if TYPE_CHECKING:
    from undaunted.inprocess.state import FrozenState

LOGGER = "InprocessRestarter.Restarter"


class _Stdout(logging.StreamHandler):  # type: ignore[type-arg] # not generic when it runs
    """Writes to what is standard output at that moment."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(logging.Formatter("[%(asctime)s] [ALWAYS] [%(name)s] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


class _Teller:
    """Writes lines if this is the rank that is to do so."""

    def __init__(self, special_rank: int = 0) -> None:
        """Have one rank write.

        Args:
            special_rank: the initial rank that does.
        """
        self.special_rank = special_rank

    def tell(self, state: FrozenState, what: str, stage: str = "") -> None:
        """Write one line."""
        if state.initial_rank != self.special_rank:
            return
        logger = logging.getLogger(LOGGER)
        if not logger.handlers:
            logger.addHandler(_Stdout())
            logger.setLevel(logging.INFO)
            logger.propagate = False
        tail = f" stage={stage}" if stage else ""
        logger.critical("[NestedRestarter] name=[InProcess] state=%s%s", what, tail)


class NestedRestarterHandlingCompleted(_Teller, Initialize):
    """Says ``initialize`` at first, and that a restart is completed later."""

    def __init__(self, special_rank: int = 0) -> None:
        """See `_Teller`."""
        super().__init__(special_rank)
        self._called = False

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `Initialize`."""
        if self._called:
            self.tell(state, "handling", "completed")
        else:
            self.tell(state, "initialize")
        self._called = True
        return state


class NestedRestarterHandlingStarting(_Teller, Abort):
    """Says that a restart begins."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `Abort`."""
        self.tell(state, "handling", "starting")
        return state


class NestedRestarterFinalized(_Teller, Completion):
    """Says that all ranks have completed the function."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `Completion`."""
        self.tell(state, "finalized")
        return state


class NestedRestarterAborted(_Teller, Terminate):
    """Says that the rank takes no part any more."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `Terminate`."""
        self.tell(state, "aborted")
        return state
