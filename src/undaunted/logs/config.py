"""Settings of the `nvrx` logger, all of them from the environment."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT_KB = 10240
_DEFAULT_FILES = 4
_YES = {"1", "true", "yes", "on"}


class Place(NamedTuple):
    """Which process of the job this is. Each is as in the environment, ``?`` where it is not."""

    rank: str
    local_rank: str
    infra_rank: str
    infra_local_rank: str


class LogConfig:
    """Reads the variables; a value that makes no sense counts as the default.

    Attributes:
        name: of the logger.
    """

    name: ClassVar[str] = "nvrx"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Use ``environ``, this process's by default."""
        self._environ = os.environ if environ is None else environ

    @property
    def node_local_tmp_dir(self) -> str:
        """``NVRX_NODE_LOCAL_TMPDIR``: directory of the message files, "" = none."""
        return self._environ.get("NVRX_NODE_LOCAL_TMPDIR", "").strip()

    @property
    def level(self) -> int:
        """DEBUG if ``NVRX_LOG_DEBUG`` is set to 1, else INFO."""
        return logging.DEBUG if self._yes("NVRX_LOG_DEBUG") else logging.INFO

    @property
    def to_stdout(self) -> bool:
        """``NVRX_LOG_TO_STDOUT``: the console is standard output, not standard error."""
        return self._yes("NVRX_LOG_TO_STDOUT")

    @property
    def max_file_bytes(self) -> int:
        """``NVRX_LOG_MAX_FILE_SIZE_KB`` (10240): a message file that is larger is followed up."""
        return 1024 * self._number("NVRX_LOG_MAX_FILE_SIZE_KB", _DEFAULT_KB)

    @property
    def max_files(self) -> int:
        """``NVRX_LOG_MAX_LOG_FILES`` (4): so many message files of a process are kept."""
        return self._number("NVRX_LOG_MAX_LOG_FILES", _DEFAULT_FILES)

    @property
    def place(self) -> Place:
        """Rank and local rank, of the job and of Slurm."""
        names = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
        return Place(*(self._environ.get(name) or "?" for name in names))

    def _yes(self, variable: str) -> bool:
        return self._environ.get(variable, "").strip().lower() in _YES

    def _number(self, variable: str, default: int) -> int:
        text = self._environ.get(variable, "").strip()
        return int(text) if text.isascii() and text.isdigit() and int(text) else default
