"""The logger `nvrx`: to the console, to one file, or to a directory on the node."""

from __future__ import annotations

import logging
import os
import sys

from undaunted.base.ids import file_name
from undaunted.logs.config import LogConfig
from undaunted.logs.message_files import Appender, MessageFiles, check_directory
from undaunted.logs.stamps import stamp

_OURS = "_undaunted_nvrx"  # marks handlers that `setup_logger` made; others are left alone


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
        logger.removeHandler(old)
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
    logger.addHandler(handler)
    logger.setLevel(config.level)
    logger.propagate = False
    if problem:
        logger.warning("messages go to standard error: %s", problem)
    return logger


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
