"""Prints so many MB of some kind as fast as it can; the figures go to a file.

    python prints.py KIND MB FIGURES

The content is the same every time, so that a log can be compared with it, see benchmarks/logs.py.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MB = 1_000_000


def content(kind: str, mb: int) -> Iterator[bytes]:
    """Yield what is printed, 1 MB at a time."""
    if kind == "lines":
        pieces = [(b"%07d " % number + b"x" * 91 + b"\n") * 10_000 for number in range(8)]
    elif kind == "line":  # without an end
        pieces = [bytes([number]) * MB for number in b"abcdefgh"]
    elif kind == "binary":
        pieces = [random.Random(number).randbytes(MB) for number in range(8)]
    else:
        raise ValueError(kind)
    return islice(cycle(pieces), mb)


def main(kind: str, mb: int, figures: Path) -> None:
    pieces = list(content(kind, min(mb, 8)))
    longest_s = 0.0
    began = time.monotonic()
    for piece in islice(cycle(pieces), mb):
        left = memoryview(piece)
        while left:
            before = time.monotonic()
            left = left[os.write(1, left) :]
            longest_s = max(longest_s, time.monotonic() - before)
    ended = time.monotonic()
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    found = {
        "MB/s": mb / (ended - began),
        "longest write, ms": longest_s * 1000,
        "peak of the agent, MiB": int(peak.split()[1]) / 1024,
        "ended": ended,
    }
    figures.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
