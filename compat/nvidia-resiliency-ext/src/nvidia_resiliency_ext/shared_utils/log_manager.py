"""The logger `nvrx`: to the console, to one file, or to a directory on the node."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from nvidia_resiliency_ext.shared_utils._messages.files import (
    Appender,
    MessageFiles,
    check_directory,
)
from undaunted.base.ids import file_name
from undaunted.fault_tolerance.output.stamps import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = "_undaunted_nvrx"  # marks handlers that `setup_logger` made; others are left alone
_LOGGER_OF_UNDAUNTED = "undaunted"
_DEFAULT_KB = 10240
_DEFAULT_FILES = 4
_YES = {"1", "true", "yes", "on"}


class Place(NamedTuple):
    """The place of a process in the job. Each is as in the environment, ``?`` where it is not."""

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


class MessageFormatter(logging.Formatter):
    """``TIME [LEVEL] [HOST] [workload:RANK(LOCAL) infra:RANK(LOCAL)] FILE:LINE MESSAGE``."""

    def __init__(self, config: LogConfig) -> None:
        place = config.place
        super().__init__(
            f"%(asctime)s [%(levelname)s] [{_escaped(os.uname().nodename)}] "
            f"[workload:{_escaped(place.rank)}({_escaped(place.local_rank)}) "
            f"infra:{_escaped(place.infra_rank)}({_escaped(place.infra_local_rank)})] "
            "%(filename)s:%(lineno)d %(message)s"
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        """Return the time as `Aggregator` sorts by it."""
        return stamp(record.created)


def setup_logger(
    node_local_tmp_dir: str | os.PathLike[str] | None = None,
    force_reset: bool = False,
    node_local_tmp_prefix: str | None = None,
    log_file: str | os.PathLike[str] | None = None,
) -> logging.Logger:
    """Set up and return the logger ``nvrx``; later calls return it as it is.

    Lines of undaunted's logger in this process go to the same place.

    Messages go to ``log_file``; else, each process its own files, to the directory, for an
    aggregator to put together; else to standard error. If file or directory cannot be used, a
    warning says so and standard error is used: logging never ends a program.

    Args:
        node_local_tmp_dir: directory on this node; None = ``NVRX_NODE_LOCAL_TMPDIR``.
        force_reset: set up again, with the environment as it is now; handlers that others have
            added stay.
        node_local_tmp_prefix: what the names of this process's files begin with.
        log_file: one file for all processes, each line with its rank in front.
    """
    logger = logging.getLogger(LogConfig.name)
    ours = [handler for handler in logger.handlers if hasattr(handler, _OURS)]
    if ours and not force_reset:
        return logger
    for old in ours:
        for each in _loggers():
            each.removeHandler(old)
        old.close()
    config = LogConfig()
    problem = ""
    try:
        handler = _handler(config, node_local_tmp_dir, node_local_tmp_prefix, log_file)
    except OSError as error:
        problem = str(error)
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MessageFormatter(config))
    setattr(handler, _OURS, True)
    for each in _loggers():
        each.addHandler(handler)
        each.setLevel(config.level)
        each.propagate = False
    if problem:
        logger.warning("messages go to standard error: %s", problem)
    return logger


def _loggers() -> tuple[logging.Logger, ...]:
    return logging.getLogger(LogConfig.name), logging.getLogger(_LOGGER_OF_UNDAUNTED)


def _handler(
    config: LogConfig,
    directory: str | os.PathLike[str] | None,
    prefix: str | None,
    log_file: str | os.PathLike[str] | None,
) -> logging.Handler:
    rank = config.place.rank
    if log_file:
        path = os.path.abspath(log_file)  # noqa: PTH100 - the program may change its directory
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return Appender(path, f"{rank}: ")
    where = os.fspath(directory) if directory else config.node_local_tmp_dir
    if where:
        where = os.path.abspath(where)  # noqa: PTH100
        check_directory(where)
        name = "_".join(filter(None, (file_name(prefix or ""), "rank", file_name(rank))))
        return MessageFiles(where, name, config.max_file_bytes, config.max_files)
    return logging.StreamHandler(sys.stdout if config.to_stdout else sys.stderr)


def _escaped(text: str) -> str:
    """Return text that is no format of `logging`."""
    return text.replace("%", "%%")


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
