"""Lines on standard output with the state of in-process restart, for a launcher that reads them.

One rank writes them: ``[NestedRestarter] name=[InProcess] state=handling stage=starting``.
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
    """Writes to the present ``sys.stdout``."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(logging.Formatter("[%(asctime)s] [ALWAYS] [%(name)s] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


class NestedRestarterLogger:
    """Writes such lines to standard output, whatever the program does with its logs."""

    def __init__(self, name: str = "InProcess", logger: str = LOGGER) -> None:
        """Prepare.

        Args:
            name: of the restarter, in the lines.
            logger: of the lines; any other one than `LOGGER` is left as the program has set it up.
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
    """Writes a line at every call, in one rank. A base class for your own plug-ins.

    Derive from this class first, then from `Initialize`, `Abort`, `Completion` or `Terminate`.
    """

    state = ""
    stage = ""

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
            state: in the line; "" = that of the class.
            stage: in the line, likewise; it need not have one.
            logger: writes the line; None = `NestedRestarterLogger()`.
        """
        self.special_rank = special_rank
        self.state = state or self.state
        self.stage = stage or self.stage
        self.logger = logger or NestedRestarterLogger()

    def __call__(self, state: FrozenState) -> FrozenState:
        """Write the line if this is that rank; return ``state``."""
        if state.initial_rank == self.special_rank:
            self.logger.tell(self.state, self.stage)
        return state


class NestedRestarterHandlingCompleted(NestedRestarterCallback, Initialize):
    """Writes ``initialize`` at first, and later that a restart is completed."""

    state = "initialize"

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `Initialize`."""
        super().__call__(state)
        self.state, self.stage = "handling", "completed"
        return state


class NestedRestarterHandlingStarting(NestedRestarterCallback, Abort):
    """Writes that a restart begins."""

    state, stage = "handling", "starting"


class NestedRestarterFinalized(NestedRestarterCallback, Completion):
    """Writes that all ranks have completed the function."""

    state = "finalized"


class NestedRestarterAborted(NestedRestarterCallback, Terminate):
    """Writes that the rank takes no part any more."""

    state = "aborted"
