"""How long a stop takes: `python -m benchmarks.stop [--repeats 5] [--ranks 8] [--workers 2]`.

From SIGTERM, to the launcher alone or to every process of the job, until the last rank begins to
save, and until the launcher has ended; in steps of 20 ms, and in an evaluation of 10 minutes with
batches of 0.1 s. Each rank has a data loader. Under torchrun the ranks have the same
`Session`, which agrees over torch's store. All take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.__main__ import machine
from tests.ports import free_ports
from undaunted.base import process

PROGRAM = str(Path(__file__).resolve().with_name("workloads") / "stop.py")
LIMIT_S, LOOK_S = 300.0, 0.01
LAUNCHERS = ("undaunted", "torchrun")
PHASES = ("steps", "evaluation")
WHOM = ("the launcher", "every process")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stop", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of each case (5)")
    parser.add_argument("--ranks", type=int, default=8, help="(8)")
    parser.add_argument("--workers", type=int, default=2, help="of each rank's loader (2)")
    args = parser.parse_args()
    cases = [(one, phase, whom) for phase in PHASES for whom in WHOM for one in LAUNCHERS]
    found: dict[tuple[str, str, str], list[tuple[float, float, int, int]]] = defaultdict(list)
    for number in range(args.repeats):
        for case in cases:
            found[case].append(measure(*case, args.ranks, args.workers))
            print(f"{number}: {', '.join(case)}: {found[case][-1]}", file=sys.stderr, flush=True)
    print("| launcher | signal in | to | last save begun, s | end, s | codes | ranks that saved |")
    print("|---|---|---|---|---|---|---|")
    for case in cases:
        runs = found[case]
        saved, ended = (f"{statistics.median(run[at] for run in runs):.2f}" for at in (0, 1))
        codes = ", ".join(sorted({f"{run[2]}" for run in runs}))
        saves = f"{sum(run[3] for run in runs)} of {args.ranks * len(runs)}"
        print("| " + " | ".join([*case, saved, ended, codes, saves]) + " |")
    print(machine())
    return 0


def measure(
    launcher: str, phase: str, whom: str, ranks: int, workers: int
) -> tuple[float, float, int, int]:
    """Return seconds to the last save and to the end, the exit code, and how many have saved."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = ["--nproc-per-node", f"{ranks}", "--max-restarts", "0"]
        start = ["-m", "undaunted", "run", "--run-dir", "run"]
        if launcher == "torchrun":
            start = ["-m", "torch.distributed.run", "--master-port", f"{free_ports(1)}"]
        with (folder / "output").open("wb") as output:
            started = subprocess.Popen(
                [sys.executable, *start, *common, PROGRAM, phase, f"{workers}"],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
            )
        try:
            wait_for(folder, "begun-*", ranks, started)
            pids = [started.pid]
            if whom != "the launcher":
                pids += process.descendants(started.pid)
            told = time.monotonic()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            code = started.wait(LIMIT_S)
            ended = time.monotonic()
        finally:
            for pid in [*process.descendants(started.pid), started.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            started.wait()
        saves = [float(path.read_text()) for path in folder.glob("saved-*")]
    return max(saves, default=float("nan")) - told, ended - told, code, len(saves)


def wait_for(folder: Path, pattern: str, count: int, started: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(list(folder.glob(pattern))) < count:
        if started.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"it has not begun: {(folder / 'output').read_text()[-2000:]}")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main())
