"""Prints as fast as it can: ``python -m benchmarks.flood MIB FIGURES``, figures go to a file.

Run it with plain redirection, and as a rank with --ft-per-cycle-applog-prefix, to see what the log
of a round costs the rank.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main(mib: int, figures: Path) -> None:
    pieces = [(b"%07d " % number + b"x" * 91 + b"\n") * 10_000 for number in range(8)]
    printed = count = 0
    longest_s = 0.0
    began = time.monotonic()
    while printed < mib << 20:
        before = time.monotonic()
        printed += os.write(1, pieces[count % len(pieces)])
        longest_s = max(longest_s, time.monotonic() - before)
        count += 1
    took_s = time.monotonic() - began
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    figures.write_text(
        f"{printed / took_s / 1e6:.0f} MB/s, longest write {longest_s * 1000:.0f} ms, "
        f"parent's peak {int(peak.split()[1]) // 1024} MiB\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
