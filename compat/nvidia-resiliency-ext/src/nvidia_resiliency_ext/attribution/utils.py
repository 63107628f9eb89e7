"""Lines that a block of code logs and prints, as text."""

from __future__ import annotations

import contextlib
import io
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def capture_logs(logger_name: str | None = None) -> Iterator[io.StringIO]:
    """Collect what is logged inside the block; handlers that are there get it as before.

    Args:
        logger_name: of the logger. None = the root logger.
    """
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger(logger_name)
    logger.addHandler(handler)
    try:
        yield text
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def capture_stdout(logger_name: str | None = None) -> Iterator[io.StringIO]:
    """Collect what all threads print to ``sys.stdout`` inside the block, instead of showing it.

    Args:
        logger_name: a logger that gets the lines at the end, at INFO. None = no logger.
    """
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            yield text
    finally:
        if logger_name is not None:
            for line in text.getvalue().splitlines():
                logging.getLogger(logger_name).info("%s", line)
