"""What `undaunted slurm-monitor` costs with many jobs: its own CPU time, without that of squeue.

    python -m benchmarks.slurm_monitor [--jobs 1000] [--cycles 20]

Slurm is a script that prints a file; the service is a real one over HTTP that answers at once.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from pathlib import Path

from tests.services.slurm.fakes import Program, Service, Slurm, row
from undaunted.base.inotify import Inotify
from undaunted.base.process import read_stat, wait_readable

DEADLINE_S = 300.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--cycles", type=int, default=20)
    options = parser.parse_args()
    service = Service()
    try:
        with tempfile.TemporaryDirectory() as directory:
            measure(Path(directory), service, options.jobs, options.cycles)
    finally:
        service.close()


def measure(directory: Path, service: Service, jobs: int, cycles: int) -> None:
    """Print CPU time: all jobs appear; nothing changes; all jobs end."""
    slurm = Slurm(directory / "slurm")
    program = Program(slurm.environment, service, directory / "state")
    ids = [f"{number}" for number in range(jobs)]
    try:
        wait_for_cycles(slurm, 2)
        began = cpu_s(program)
        slurm.show(*(row(id_, "RUNNING", "/logs/%j.out") for id_ in ids))
        service.wait_for(ids, "track_only")
        wait_for_cycles(slurm, 2)
        print(f"{jobs} jobs appear, and are submitted: {cpu_s(program) - began:.2f} s of CPU time")
        began, since = cpu_s(program), time.monotonic()
        wait_for_cycles(slurm, cycles)
        each = 1000 * (cpu_s(program) - began) / cycles
        print(f"a cycle in which nothing changes: {each:.0f} ms, of {cycles}")
        print(f"  ({(time.monotonic() - since) / cycles:.2f} s from one to the next)")
        began = cpu_s(program)
        slurm.show(*(row(id_, "FAILED", "/logs/%j.out") for id_ in ids))
        program.wait_for("] job ", jobs)
        print(f"{jobs} jobs end, and their results are kept: {cpu_s(program) - began:.2f} s")
    finally:
        program.end(signal.SIGTERM)


def cpu_s(program: Program) -> float:
    """Return the CPU time that the monitor has used, seconds."""
    stat = read_stat(program.process.pid)
    assert stat is not None
    return stat.cpu_s


def wait_for_cycles(slurm: Slurm, number: int) -> None:
    """Wait until squeue was called so many times more."""
    watch = Inotify()
    try:
        watch.watch(str(slurm.directory / "asked"))
        last = len(slurm.asked()) + number
        while len(slurm.asked()) < last:
            assert wait_readable(watch.fileno(), DEADLINE_S)
            watch.drain()
    finally:
        watch.close()


if __name__ == "__main__":
    main()
