"""What a rank pays for telling of itself under a launcher, also when no journal can be written.

    python benchmarks/event.py [--calls 20000] [--json]

Each case is a run of its own with one rank, which measures every single call of `undaunted.event`,
`undaunted.step` and a section: as usual; while the launcher is stopped (SIGSTOP); while the disk of
the journal hangs (the journal is a pipe that nobody reads); while it is full (needs root, else left
out). The timer's own cost, some 50 ns, is not subtracted.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARM_UP = 200
DEADLINE_S = 120.0
CASES = ("as usual", "launcher stopped", "disk hangs", "disk full")


def of_rank(result: Path, case: str, calls: int) -> None:
    """Measure; runs as the rank."""
    import undaunted

    def section() -> None:
        with undaunted.section("benchmark"):
            pass

    kinds: dict[str, Callable[[], object]] = {
        "event": lambda: undaunted.event("name", "a short text"),
        "step": lambda: undaunted.step(7),
        "section": section,
    }
    agent = int(os.environ["UNDAUNTED_PAGE"].rpartition(":")[2])
    stopped = case == "launcher stopped"
    undaunted.step(0)
    if case == "disk full":
        fill(Path(os.environ["UNDAUNTED_RUN_DIR"]))
    if stopped:
        os.kill(agent, signal.SIGSTOP)
    try:
        found = {name: figures(times(call, calls)) for name, call in kinds.items()}
    finally:
        if stopped:
            os.kill(agent, signal.SIGCONT)
    result.write_text(json.dumps(found))


def times(call: Callable[[], object], calls: int) -> list[int]:
    """Return the nanoseconds each call took."""
    seen = []
    for _ in range(calls + WARM_UP):
        start = time.perf_counter_ns()
        call()
        seen.append(time.perf_counter_ns() - start)
    return seen[WARM_UP:]


def figures(seen: list[int]) -> dict[str, float]:
    percentiles = statistics.quantiles(seen, n=1000)
    return {
        "median_us": round(statistics.median(seen) / 1e3, 2),
        "p99_us": round(percentiles[989] / 1e3, 2),
        "p99.9_us": round(percentiles[998] / 1e3, 2),
        "max_us": round(max(seen) / 1e3, 1),
    }


def fill(directory: Path) -> None:
    with contextlib.suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


def run(case: str, calls: int) -> dict[str, dict[str, float]] | None:
    """Run one case under a launcher; None if this machine does not allow it."""
    with tempfile.TemporaryDirectory() as place:
        run_dir, result = Path(place, "run"), Path(place, "result")
        run_dir.mkdir(mode=0o700)
        with contextlib.ExitStack() as undo:
            if case == "disk full" and not undo.enter_context(small_disk(run_dir)):
                return None
            if case == "disk hangs":
                os.mkfifo(run_dir / "journal-n0.jsonl", 0o600)
            launcher = [sys.executable, "-m", "undaunted.cli.main", "run", "--nproc-per-node", "1"]
            options = ["--node-name", "n0", "--worker-start", "fresh", "--run-dir", str(run_dir)]
            program = [__file__, "--rank", str(result), "--case", case, "--calls", str(calls)]
            subprocess.run(
                [*launcher, *options, *program],
                check=True,
                stderr=subprocess.DEVNULL,
                timeout=DEADLINE_S,
            )
            found: dict[str, dict[str, float]] = json.loads(result.read_text())
            return found


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[bool]:
    """A file system of 64 KiB; False where that needs more rights."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = libc.mount(b"tmpfs", bytes(directory), b"tmpfs", 0, b"size=64k,mode=700") == 0
    try:
        yield mounted
    finally:
        if mounted:
            libc.umount2(bytes(directory), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000, help="of each kind, at least 2")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=CASES, help="only this one")
    options = parser.parse_args()
    if options.rank:
        of_rank(options.rank, options.case, options.calls)
        return
    results = {}
    for case in [options.case] if options.case else CASES:
        for name, one in (run(case, options.calls) or {}).items():
            results[f"{name}, {case}"] = one
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'call':<28}" + "".join(f"{name:>10}" for name in next(iter(results.values()))))
    for name, one in results.items():
        print(f"{name:<28}" + "".join(f"{value:>10.2f}" for value in one.values()))


if __name__ == "__main__":
    main()
