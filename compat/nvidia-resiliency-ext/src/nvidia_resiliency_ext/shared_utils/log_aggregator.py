"""`log_aggregator`: put the `nvrx` messages of a node together in one log."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_HELP = """\
Usage: log_aggregator --log-file FILE [OPTIONS]

Puts the messages that the processes of this node write with the nvrx logger
together in one file, in the order of time. Goes on until it gets SIGTERM or
SIGINT, or the file of --wait-file appears; what is there by then is written.

Options:
  --log-file FILE   the file, which is appended to
  --temp-dir DIR    directory of the messages (NVRX_NODE_LOCAL_TMPDIR)
  --wait-file FILE  end when this file appears; make it when the job is over
  --once            write what is there, and end

Only one can be at work on a directory; another that follows it goes on where
it was. If the first one was killed, its last messages may be in the file twice.
"""
_OPTIONS = ("log-file", "temp-dir", "wait-file")
_USAGE_ERROR = 2
_FAILED = 1
_CLOSE_S = 60.0
_LOOK_S = 1.0  # a file made on another node of a shared disk wakes nobody here


class _UsageError(Exception):
    """The command line cannot be run; the message says why and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Aggregate as the command line ``argv`` (default: this process's) says."""
    words = sys.argv[1:] if argv is None else argv
    try:
        options = _parse(words)
        if "help" in options:
            print(_HELP, end="")
            return 0
        directory = _directory(options)
    except _UsageError as error:
        print(f"log_aggregator: error: {error}", file=sys.stderr)
        return _USAGE_ERROR
    return _aggregate(directory, options)


def _aggregate(directory: str, options: dict[str, str]) -> int:
    from nvidia_resiliency_ext.shared_utils._messages.aggregator import Aggregator

    if "once" in options and not os.path.lexists(directory):
        print(f"log_aggregator: there is no directory {directory}", file=sys.stderr)
        return _FAILED
    aggregator = Aggregator(os.path.abspath(directory), options["log-file"])  # noqa: PTH100
    try:
        aggregator.start()
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"log_aggregator: {said}", file=sys.stderr)
        return _FAILED
    if "once" not in options:
        _wait_for_end(options.get("wait-file", ""))
    complete = aggregator.close(_CLOSE_S)
    for problem in aggregator.problems:
        print(f"log_aggregator: {problem}", file=sys.stderr)
    return 0 if complete and not aggregator.problems else _FAILED


def _wait_for_end(wait_file: str) -> None:
    from undaunted.fault_tolerance.output.growth import Growth

    growth = Growth()
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        growth.wake()

    old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        if wait_file:
            growth.watch(str(Path(wait_file).absolute().parent))
        while not stopped and not (wait_file and os.path.lexists(wait_file)):
            now = time.monotonic()
            growth.wait(now, now + _LOOK_S if wait_file else None)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        growth.close()


def _directory(options: dict[str, str]) -> str:
    """Return the directory of the messages, once both ends are known."""
    directory = options.get("temp-dir") or os.environ.get("NVRX_NODE_LOCAL_TMPDIR", "")
    if not directory:
        raise _UsageError("where are the messages? Give --temp-dir or NVRX_NODE_LOCAL_TMPDIR")
    if "log-file" not in options:
        raise _UsageError("where shall they go? Give --log-file")
    return directory


def _parse(words: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        spelling, equals, value = rest.pop(0).partition("=")
        name = spelling.removeprefix("--").replace("_", "-")
        if spelling in {"-h", "--help"}:
            return {"help": ""}
        if not spelling.startswith("--") or name not in (*_OPTIONS, "once"):
            raise _UsageError(f"unknown option {spelling}; see --help")
        if name == "once":
            options[name] = ""
        elif equals or rest:
            options[name] = value if equals else rest.pop(0)
        else:
            raise _UsageError(f"{spelling} needs a value")
    return options


__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
