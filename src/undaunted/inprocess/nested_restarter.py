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


class NestedRestarterLogger:
    """Writes such lines to standard output, once each, whatever the program does with its logs."""

    def __init__(self, name: str = "InProcess", logger: str = LOGGER) -> None:
        """Prepare.

        Args:
            name: of the restarter, as the lines have it.
            logger: where they go; one that is not `LOGGER` is left as the program has set it up.
        """
        self._name = name
        self._logger = logging.getLogger(logger)

    def tell(self, state: str, stage: str = "") -> None:
        """Write one line."""
        logger = self._logger
        if logger.name == LOGGER and not logger.handlers:
            logger.addHandler(_Stdout())
            logger.setLevel(logging.INFO)
            logger.propagate = False
        tail = f" stage={stage}" if stage else ""
        logger.critical("[NestedRestarter] name=[%s] state=%s%s", self._name, state, tail)


class NestedRestarterCallback:
    """Writes a line whenever it is called, in one rank. For plug-ins of one's own.

    Derive from it first and from `Initialize`, `Abort`, `Completion` or `Terminate` then.
    """

    def __init__(
        self,
        special_rank: int = 0,
        *,
        state: str = "",
        stage: str = "",
        logger: NestedRestarterLogger | None = None,
    ) -> None:
        """Prepare.

        Args:
            special_rank: the initial rank that writes.
            state: what the line says.
            stage: of the state, "" = it has none.
            logger: writes; None = one with its defaults.
        """
        self.special_rank = special_rank
        self.state = state
        self.stage = stage
        self.logger = logger or NestedRestarterLogger()

    def __call__(self, state: FrozenState) -> FrozenState:
        """Write the line if this is that rank; return ``state``."""
        if state.initial_rank == self.special_rank:
            self.logger.tell(self.state, self.stage)
        return state


class NestedRestarterHandlingCompleted(NestedRestarterCallback, Initialize):
    """Says ``initialize`` at first, and that a restart is completed later."""

    def __init__(
        self, special_rank: int = 0, *, logger: NestedRestarterLogger | None = None
    ) -> None:
        """See `NestedRestarterCallback`."""
        super().__init__(special_rank, state="initialize", logger=logger)

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `Initialize`."""
        super().__call__(state)
        self.state, self.stage = "handling", "completed"
        return state


class NestedRestarterHandlingStarting(NestedRestarterCallback, Abort):
    """Says that a restart begins."""

    def __init__(
        self, special_rank: int = 0, *, logger: NestedRestarterLogger | None = None
    ) -> None:
        """See `NestedRestarterCallback`."""
        super().__init__(special_rank, state="handling", stage="starting", logger=logger)


class NestedRestarterFinalized(NestedRestarterCallback, Completion):
    """Says that all ranks have completed the function."""

    def __init__(
        self, special_rank: int = 0, *, logger: NestedRestarterLogger | None = None
    ) -> None:
        """See `NestedRestarterCallback`."""
        super().__init__(special_rank, state="finalized", logger=logger)


class NestedRestarterAborted(NestedRestarterCallback, Terminate):
    """Says that the rank takes no part any more."""

    def __init__(
        self, special_rank: int = 0, *, logger: NestedRestarterLogger | None = None
    ) -> None:
        """See `NestedRestarterCallback`."""
        super().__init__(special_rank, state="aborted", logger=logger)
