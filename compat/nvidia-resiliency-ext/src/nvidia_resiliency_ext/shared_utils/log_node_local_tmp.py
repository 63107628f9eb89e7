"""The messages that the processes of a node leave in a directory, put together in one log."""

from __future__ import annotations

import logging
from pathlib import Path

from nvidia_resiliency_ext.shared_utils._messages.aggregator import Aggregator
from nvidia_resiliency_ext.shared_utils.log_manager import LogConfig

_CLOSE_S = 60.0


class NodeLogAggregator:
    """Follows the directory from `start_aggregator` to `shutdown`, on a thread.

    Args:
        log_dir: of the log; made if it is missing.
        temp_dir: of the messages, as `setup_logger` is given it; None =
            ``NVRX_NODE_LOCAL_TMPDIR``.
        log_file: name of the log in its directory.
        max_file_size: accepted, not used: the log is one file.
        en_chrono_ord: accepted, not used: messages are in the order of time.

    Raises:
        ValueError: nothing says where the messages are.
    """

    def __init__(
        self,
        log_dir: str,
        temp_dir: str | None = None,
        log_file: str = "nvrx.log",
        max_file_size: int | None = None,
        en_chrono_ord: bool = True,
    ) -> None:
        del max_file_size, en_chrono_ord
        directory = temp_dir or LogConfig().node_local_tmp_dir
        if not directory:
            raise ValueError("temp_dir is not given, and NVRX_NODE_LOCAL_TMPDIR is not set")
        self._log = Path(log_dir, log_file)
        self._aggregator = Aggregator(directory, str(self._log))

    def start_aggregator(self) -> None:
        """Begin.

        Raises:
            OSError: a directory or the log cannot be used, or another aggregator has it.
        """
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._aggregator.start()

    def shutdown(self) -> None:
        """Write what is there, for at most a minute; a line says what could not be written."""
        self._aggregator.close(_CLOSE_S)
        for problem in self._aggregator.problems:
            logging.getLogger("undaunted").warning("%s", problem)


__all__ = ["NodeLogAggregator"]
