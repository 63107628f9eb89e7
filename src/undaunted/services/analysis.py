"""A program that reads logs, one after the other, and says what they tell of.

Nothing in a log is trusted: it may be huge, or made so that reading it takes for ever. This process
has a limit of memory, and is killed by the one that asks when a log takes too long.

Arguments: the folders below which files may be read. On standard input: paths in JSON, one a line.
On standard output: an `Answer` for each, a line as well.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.logs.analyse import read_logs
from undaunted.base.oom_score import raise_own
from undaunted.base.process import die_with_parent
from undaunted.base.roots import Code, RefusedError, Roots
from undaunted.services.results import MOST_FINDINGS, Told

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY = 768 << 20  # bytes of addresses
_SCORE = 500  # of thousand: rather this than the service


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is said of a path.

    Attributes:
        told: what the log tells of, None = it is not read.
        code, message: why, as `undaunted.base.roots.RefusedError` has it.
    """

    told: Told | None = None
    code: Code | None = None
    message: str = ""


def analyse(path: str, roots: Roots) -> Told:
    """Read a log.

    Raises:
        RefusedError: it is not to be read.
    """
    opened = roots.open(path)
    # The scan opens its file once, as the first thing it does.
    reading = read_logs([opened.path], opener=lambda _path, _flags: opened.fd)
    return Told(
        opened.stamp,
        tuple(reading.findings[:MOST_FINDINGS]),
        reading.step,
        reading.ended,
        bool(reading.findings) and reading.action == "stop",
    )


def main(folders: Sequence[str]) -> int:
    """Read the logs that standard input names."""
    if not die_with_parent(os.getppid()):
        return 1
    raise_own(_SCORE)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    roots = Roots(folders)
    for line in sys.stdin.buffer:
        try:
            said = Answer(analyse(msgspec.json.decode(line, type=str), roots))
        except RefusedError as error:
            said = Answer(None, error.code, str(error))
        sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
