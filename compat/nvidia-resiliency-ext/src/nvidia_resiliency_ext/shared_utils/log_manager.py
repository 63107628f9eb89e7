"""The logger `nvrx`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.logs.config import LogConfig
from undaunted.logs.logger import setup_logger

if TYPE_CHECKING:
    import os


class LogManager:
    """The logger as an object: set up anew when it is made.

    Args:
        node_local_tmp_dir: see `setup_logger`, as the others.
        node_local_tmp_prefix: likewise.
        log_file: likewise.

    Attributes:
        logger: ``nvrx``.
        node_local_tmp_dir: directory of the message files, "" = none.
    """

    def __init__(
        self,
        node_local_tmp_dir: str | os.PathLike[str] | None = None,
        node_local_tmp_prefix: str | None = None,
        log_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.node_local_tmp_dir = str(node_local_tmp_dir or LogConfig().node_local_tmp_dir)
        self.logger = setup_logger(
            node_local_tmp_dir,
            force_reset=True,
            node_local_tmp_prefix=node_local_tmp_prefix,
            log_file=log_file,
        )


__all__ = ["LogConfig", "LogManager", "setup_logger"]
