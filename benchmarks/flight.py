"""How long `undaunted flight` takes for the dumps of large jobs, and how much memory.

``python -m benchmarks.flight [--ranks 256 4096] [--entries 2000] [--where DIR]`` writes dumps in
the form of NCCL's (tensor groups of 8, pipelines of 4, the rest data), analyses them, and removes
them. Dumps of 4,096 ranks take 2 GB of disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from undaunted.base.process import module_command

TENSOR, PIPELINE = 8, 4
START_NS = 1_795_370_000_000_000_000
CULPRIT_OF = 3  # of `ranks`, one third


def groups_of(rank: int, size: int) -> list[tuple[str, str, list[int]]]:
    """Return name, description and members of the groups of a rank."""
    tensor = rank // TENSOR
    stage_size = size // PIPELINE
    inside = rank % stage_size
    data = [one for one in range(size) if one % TENSOR == rank % TENSOR]
    data = [one for one in data if one // stage_size == rank // stage_size]
    pipeline = [inside + stage * stage_size for stage in range(PIPELINE)]
    count = size // TENSOR
    return [
        ("0", "default_pg", list(range(size))),
        (str(1 + tensor), "TENSOR_MODEL_PARALLEL_GROUP", list(range(tensor * 8, tensor * 8 + 8))),
        (str(1 + count + inside), "PIPELINE_MODEL_PARALLEL_GROUP", pipeline),
        (str(10_000 + data[0]), "DATA_PARALLEL_GROUP", data),
    ]


def dump_of(rank: int, size: int, entries: int, culprit: int) -> dict[str, object]:
    """Return the dump of a rank: all wait in the last collective of all, which one did not call."""
    groups = groups_of(rank, size)
    found = []
    numbers = [0] * len(groups)
    for place in range(entries):
        last = place == entries - 1
        if last and rank == culprit:
            break
        which = 0 if last else (3 if place % 50 == 49 else 2 if place % 10 == 9 else 1)
        name, description, ranks = groups[which]
        is_p2p = which == 2
        numbers[which] += 1
        own = ranks.index(rank) if is_p2p else 0
        call = f"nccl:send {own}->{(own + 1) % len(ranks)}" if is_p2p else "nccl:all_reduce"
        found.append(
            {
                "record_id": 7000 + place,
                "pg_id": which,
                "process_group": (name, description),
                "collective_seq_id": 0 if is_p2p else numbers[which],
                "p2p_seq_id": numbers[which] if is_p2p else 0,
                "op_id": numbers[which],
                "profiling_name": call,
                "thread_id": "140210003",
                "thread_name": "pt_main_thread",
                "time_created_ns": START_NS + place * 1_000_000 + rank,
                "duration_ms": 0.25,
                "input_sizes": ([4096, 1024],),
                "output_sizes": ([4096, 1024],),
                "input_dtypes": ["BFloat16"],
                "output_dtypes": ["BFloat16"],
                "state": "scheduled" if last else "completed",
                "time_discovered_started_ns": START_NS + place * 1_000_000 + 100,
                "time_discovered_completed_ns": None
                if last
                else START_NS + place * 1_000_000 + 200,
                "retired": not last,
                "timeout_ms": 600000,
                "is_p2p": is_p2p,
            }
        )
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "pg_config": {
            name: {"name": name, "desc": description, "ranks": str(ranks)}
            for name, description, ranks in groups
        },
        "pg_status": {
            str(place): {
                "last_enqueued_collective": numbers[place],
                "last_started_collective": -1,
                "last_completed_collective": numbers[place] - (place == 0 and rank != culprit),
            }
            for place in range(len(groups))
        },
        "entries": found,
    }


def write(directory: Path, size: int, entries: int, culprit: int) -> int:
    """Write the dumps with all cores; return their bytes."""
    workers = []
    cores = len(os.sched_getaffinity(0))
    for share in range(cores):
        pid = os.fork()
        if not pid:
            for rank in range(share, size, cores):
                data = pickle.dumps(dump_of(rank, size, entries, culprit), protocol=2)
                (directory / f"_dump_{rank}").write_bytes(data)
            os._exit(0)
        workers.append(pid)
    for pid in workers:
        assert os.waitpid(pid, 0)[1] == 0
    return sum(one.stat().st_size for one in directory.iterdir())


def measure(directory: Path) -> dict[str, object]:
    """Run the command; return its times in seconds, its peak memory in MiB, and whom it blames."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    command = module_command("undaunted.cli.main", "flight", str(directory), "--json")
    program = subprocess.Popen(command, stdout=subprocess.PIPE)
    peak = 0
    assert program.stdout is not None
    os.set_blocking(program.stdout.fileno(), False)
    output = b""
    while program.poll() is None:
        output += program.stdout.read() or b""
        peak = max(peak, _resident(program.pid))
        time.sleep(0.02)
    output += program.stdout.read() or b""
    wall = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(output)
    return {
        "wall_s": round(wall, 2),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "resident_mib": peak >> 20,
        "culprits": [(one["rank"], one["cause"]) for one in found["culprits"]],
    }


def _resident(pid: int) -> int:
    """Return the resident bytes of a process and its children."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            total += sum(_own(int(child)) for child in task.read_text().split())
    return total + _own(pid)


def _own(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[256])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--where", type=Path, default=None)
    options = parser.parse_args()
    for size in options.ranks:
        directory = Path(tempfile.mkdtemp(prefix="flight-", dir=options.where))
        try:
            needed = size * options.entries * 300
            assert shutil.disk_usage(directory).free > 2 * needed, "too little room on the disk"
            written = write(directory, size, options.entries, culprit=size // CULPRIT_OF)
            print(f"{size} dumps of {options.entries} entries, {written >> 20} MiB", flush=True)
            print(f"  {measure(directory)}", flush=True)
        finally:
            shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
