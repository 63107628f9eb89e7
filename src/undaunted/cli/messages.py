"""The words of every command: help texts, output for programs, and why it ends."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from undaunted.base.streams import discard_stdout
from undaunted.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

USAGE_ERROR = 2  # exit code


class UsageError(Exception):
    """The command line cannot be run as it is; the message says why and what to do."""


def complain(command: str, error: object) -> int:
    """Say on standard error why a command ends; return the exit code of wrong use."""
    name = f"undaunted {command}".rstrip()
    print(f"{name}: error: {printable(str(error))}", file=sys.stderr)
    return USAGE_ERROR


@contextmanager
def printing() -> Iterator[None]:
    """Print all that the body writes; a pager that has had enough is no error.

    Raises:
        UsageError: standard output cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        raise UsageError(f"standard output: {error.strerror}") from None


def json_text(value: object) -> str:
    """Return a value for programs: JSON of several lines, the last one ended."""
    import msgspec  # late, as most commands print none

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def show(command: str, text: str) -> int:
    """Print a help text; return the exit code: wrong use if nothing can be printed."""
    try:
        with printing():
            sys.stdout.write(text)
    except UsageError as error:
        discard_stdout()  # or the interpreter complains of the rest once more at its end
        return complain(command, error)
    return 0
