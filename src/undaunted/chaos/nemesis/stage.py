"""The process in which a launcher of a chaos run begins.

    python -m undaunted.chaos.nemesis.stage PARENT NAMESPACES COMMAND...

It enters the namespaces behind the descriptors NAMESPACES (numbers with commas between, or "-"),
asks the kernel to be killed when PARENT, the chaos process, has ended, and becomes COMMAND. The
agent of a launcher that is killed ends everything below it, so nothing of a run outlives chaos.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.chaos.nemesis import namespaces

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_NAMESPACES = "-"
CANNOT_START = 70  # EX_SOFTWARE


def command(parent: int, fds: Sequence[int], argv: Sequence[str]) -> list[str]:
    """Return the command line of the program above.

    Args:
        parent: pid of the process without which it is not to live.
        fds: descriptors of namespaces.
        argv: the command, with its path.
    """
    return process.module_command(__name__, str(parent), numbers(fds), *argv)


def numbers(fds: Sequence[int]) -> str:
    """Return descriptors as `enter_all` takes them."""
    return ",".join(map(str, fds)) or _NO_NAMESPACES


def enter_all(text: str) -> None:
    """Move this process, which must have one thread, into the namespaces behind these descriptors.

    Raises:
        OSError: the kernel refused.
    """
    for number in text.split(",") if text != _NO_NAMESPACES else ():
        namespaces.enter(int(number))
        os.close(int(number))


def main(words: Sequence[str]) -> int:
    """Become the command; return only if that is not possible."""
    parent, fds, *argv = words
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib gives the same, wrapped
        enter_all(fds)
        os.chdir(here)  # entering a mount namespace leads to its root
        # After that: a change of credentials forgets the request.
        if not process.die_with_parent(int(parent)):
            return CANNOT_START
        os.execv(argv[0], argv)  # noqa: S606 - the point of it
    except OSError as error:
        print(f"undaunted chaos: {argv[0]} cannot be started: {error}", file=sys.stderr)
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
