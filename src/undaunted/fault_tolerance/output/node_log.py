"""One log of the `nvrx` messages of a node, while its launcher runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.deadline import within
from undaunted.logs.aggregator import Aggregator

if TYPE_CHECKING:
    from undaunted.fault_tolerance.run_config import RunConfig

_START_S = 2.0
_CLOSE_S = 5.0


class NodeLog:
    """Puts the messages of ``NVRX_NODE_LOCAL_TMPDIR`` together in ``RUN_DIR/nvrx-NODE.log``."""

    def __init__(self, config: RunConfig) -> None:
        self._directory = config.message_dir
        self._path = f"{config.run_dir}/nvrx-{config.node}.log"
        self._aggregator = Aggregator(self._directory, self._path) if self._directory else None

    def start(self) -> str:
        """Begin; return what cannot be done, as a line for the user, "" = all is well."""
        if self._aggregator is None:
            return ""
        problem = within(_START_S, self._start, "the disk does not answer")
        if not problem:
            return ""
        self._aggregator = None
        return f"the messages in {self._directory} do not go to {self._path}: {problem}"

    def close(self) -> str:
        """Write what is there, bounded; return what is missing."""
        if self._aggregator is None:
            return ""
        self._aggregator.close(_CLOSE_S)
        return "; ".join(self._aggregator.problems)

    def _start(self) -> str:
        assert self._aggregator is not None
        try:
            self._aggregator.start()
        except OSError as error:
            return error.strerror or str(error)
        return ""
