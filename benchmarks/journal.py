"""What `JournalWriter.record` costs its caller.

    python benchmarks/journal.py [--calls 20000] [--json]

Three cases: a small event (a milestone), a large one (a verdict with a traceback of 4 KB), and a
small one while the disk hangs and the queue is full. The overhead of the timer is not subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.journal.events import RankMilestone, Verdict
from undaunted.journal.writer import JournalWriter

if TYPE_CHECKING:
    from undaunted.journal.events import Event

ROUND = 500  # calls between two flushes, so that the queue never fills
WARM_UP = 200


class HangingFiles:
    """The real file system, except that writes wait for `released`."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.reached = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, fd: int, data: bytes) -> int:
        """Wait, then write."""
        self.reached.set()
        self.released.wait(600)
        return os.write(fd, data)


def small() -> Event:
    now = time.monotonic_ns()
    return RankMilestone(t=now, rank=3, name="first_line", at_ns=now)


def large() -> Event:
    return Verdict(
        t=time.monotonic_ns(), kind="crash", rank=3, local_rank=3, pid=4711, exit_code=1,
        line="rank 3 raised ValueError: bad batch", traceback="  File train.py, line 1\n" * 170,
    )  # fmt: skip


def measure(writer: JournalWriter, make: Any, calls: int, *, flush: bool) -> list[int]:
    """Return the nanoseconds each call took."""
    times = []
    for number in range(calls + WARM_UP):
        event = make()
        start = time.perf_counter_ns()
        writer.record(event)
        times.append(time.perf_counter_ns() - start)
        if flush and number % ROUND == 0:
            assert writer.flush(60)
    return times[WARM_UP:]


def run(calls: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as directory:
        writer = JournalWriter(Path(directory) / "j", node="n")
        cases = {
            "small event": measure(writer, small, calls, flush=True),
            "verdict with traceback": measure(writer, large, calls, flush=True),
        }
        assert writer.close(60)
        assert writer.lost == 0
        files = HangingFiles()
        writer = JournalWriter(Path(directory) / "h", node="n", max_events=100, fs=files)
        assert files.reached.wait(60)
        cases["small event, disk hangs"] = measure(writer, small, calls, flush=False)
        files.released.set()
        assert writer.close(60)
    return {name: figures(times) for name, times in cases.items()}


def figures(times: list[int]) -> dict[str, float]:
    percentiles = statistics.quantiles(times, n=100)
    return {
        "median_us": round(statistics.median(times) / 1e3, 2),
        "p99_us": round(percentiles[98] / 1e3, 2),
        "max_us": round(max(times) / 1e3, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = run(options.calls)
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'record()':<26}{'median us':>10}{'p99 us':>10}{'max us':>10}")
    for name, one in results.items():
        row = "".join(f"{value:>10.1f}" for value in one.values())
        print(f"{name:<26}{row}")


if __name__ == "__main__":
    main()
