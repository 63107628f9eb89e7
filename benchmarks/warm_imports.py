"""Whether imports of a second template make ranks slower that use all CPUs: see `--help`.

`python -m benchmarks.warm_imports`: as many ranks as cores multiply matrices and meet after each
step. In every other window a process imports what templates import, as they do it: torch, and
the packages of `--statements`. It begins again whenever it has ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.__main__ import machine

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

SIZE = 300  # of a matrix: a multiplication takes about a millisecond
PRODUCTS = 30  # in a step
MEET_S = 60.0
IMPORTS = """
import os, sys
from undaunted.fault_tolerance.worker import import_notes
from undaunted.fault_tolerance.worker.messages import Learned
from undaunted.fault_tolerance.worker.warm_imports import WarmImports, lowest_priority, write
if sys.argv[1] == "note":
    import_notes.begin(os.environ.copy())
    exec(sys.argv[2])
    told = import_notes.decode(import_notes.answer())
    learned = Learned(groups=told.groups, packages=told.packages, own=told.own, gives_way=True)
    os.sendfile(1, write(learned), 0, 1 << 24)
else:
    import msgspec
    with lowest_priority():
        WarmImports().load(msgspec.json.decode(open(sys.argv[2], "rb").read(), type=Learned))
"""


def rank(barrier: Barrier, times: Connection | None) -> None:
    """Make steps for ever; the first rank sends the time of each."""
    import numpy as np

    os.setsid()  # as ranks have
    a = np.ones((SIZE, SIZE)) / SIZE
    began = time.monotonic()
    while True:
        for _ in range(PRODUCTS):
            a = a @ a
        barrier.wait(MEET_S)
        ended = time.monotonic()
        if times is not None:
            times.send(ended - began)
        began = ended


class Importer:
    """A process that imports, begun again whenever it has ended. ``cpu_s``: what they have used."""

    def __init__(self, file: str) -> None:
        self._command = [sys.executable, "-c", IMPORTS, "load", file]
        self._process: subprocess.Popen[bytes] | None = None
        self.ended = 0
        self.cpu_s = 0.0

    def go_on(self) -> None:
        """Begin the import, unless it is under way."""
        if self._process is not None and self._wait(os.WNOHANG):
            assert self._process.returncode == 0, "the import failed"
            self.ended += 1
            self._process = None
        if self._process is None:
            self._process = subprocess.Popen(self._command, start_new_session=True)

    def end(self) -> None:
        """End the import."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._wait(0)  # bounded: it was killed
            self._process = None

    def _wait(self, options: int) -> bool:
        assert self._process is not None
        pid, status, used = os.wait4(self._process.pid, options)
        if pid:
            self._process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s += used.ru_utime + used.ru_stime
        return bool(pid)


def window(times: Connection, seconds: float, importer: Importer | None) -> list[float]:
    """Return the times of steps in a window."""
    steps: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if importer is not None:
            importer.go_on()
        assert times.poll(MEET_S), "the ranks make no steps"
        steps.append(times.recv())
    if importer is not None:
        importer.end()
    return steps[1:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm_imports", description=__doc__)
    parser.add_argument("--statements", default="import torch", help="what is imported")
    parser.add_argument("--windows", type=int, default=10, help="of each kind (10)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a window (8)")
    args = parser.parse_args()
    noted = subprocess.run(
        [sys.executable, "-c", IMPORTS, "note", args.statements], stdout=subprocess.PIPE, check=True
    )
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    file = f"/proc/{os.getpid()}/fd/{_file_of(noted.stdout)}"
    ranks = len(os.sched_getaffinity(0))
    barrier = multiprocessing.Barrier(ranks)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    processes = [
        multiprocessing.Process(
            target=rank, args=(barrier, None if number else sender), daemon=True
        )
        for number in range(ranks)
    ]
    for process in processes:
        process.start()
    importer = Importer(file)
    alone: list[float] = []
    beside: list[float] = []
    ratios: list[float] = []
    window(receiver, 1.0, None)
    for number in range(args.windows):
        one = window(receiver, args.seconds, None)
        two = window(receiver, args.seconds, importer)
        alone += one
        beside += two
        ratios.append(statistics.mean(two) / statistics.mean(one))
        print(f"{number}: {ratios[-1]:.4f}", file=sys.stderr, flush=True)
    for process in processes:
        process.kill()
        process.join(10)
    print(f"| {ranks} ranks on {ranks} cores | alone | beside an import |")
    print("|---|---|---|")
    for name, take in (("mean", statistics.mean), ("median", statistics.median)):
        print(f"| step, {name} | {take(alone) * 1e3:.2f} ms | {take(beside) * 1e3:.2f} ms |")
    middle = statistics.median(ratios)
    print(f"ratio of means: median {middle:.4f} [{min(ratios):.4f}..{max(ratios):.4f}]")
    share = importer.cpu_s / (args.windows * args.seconds * ranks)
    print(f"of the CPUs' time imports had {share:.2%}; {importer.ended} came to an end in a window")
    print(machine())
    return 0


def _file_of(data: bytes) -> int:
    fd = os.memfd_create("undaunted-benchmark")
    os.write(fd, data)
    return fd


if __name__ == "__main__":
    sys.exit(main())
