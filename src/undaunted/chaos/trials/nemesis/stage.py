"""The process in which a launcher of a chaos run begins.

    python -m undaunted.chaos.trials.nemesis.stage PARENT NAMESPACES COMMAND...

It enters the namespaces behind the descriptors NAMESPACES (numbers with commas between, or "-"),
asks the kernel to be killed when PARENT, the chaos process, has ended, and becomes COMMAND. The
agent of a launcher that is killed ends everything below it, so nothing of a run outlives chaos.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.chaos.trials.nemesis import namespaces

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_NAMESPACES = "-"
CANNOT_START = 70  # EX_SOFTWARE


def command(parent: int, fds: Sequence[int], argv: Sequence[str]) -> list[str]:
    """Return the command line of the program above."""
    numbers = ",".join(map(str, fds)) or NO_NAMESPACES
    return [sys.executable, "-m", __name__, str(parent), numbers, *argv]


def main(words: Sequence[str]) -> int:
    """Become the command; return only if that is not possible."""
    parent, numbers, *argv = words
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib gives the same, wrapped
        for number in numbers.split(",") if numbers != NO_NAMESPACES else ():
            namespaces.enter(int(number))
            os.close(int(number))
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
