"""The log of a round, with real launchers and ranks."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

CRASH_ONCE = """
    import os, sys
    cycle = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"out of rank {os.environ['RANK']} in cycle {cycle}", flush=True)
    print(f"err of rank {os.environ['RANK']}", file=sys.stderr, flush=True)
    if cycle == "0" and os.environ["RANK"] == "1":
        raise ValueError("first attempt")
"""

# Rank 0 floods, rank 1 prints a line of 32 MB without an end, rank 2 prints anything.
FLOOD = """
    import hashlib, os, pathlib, random
    rank = int(os.environ["RANK"])
    if rank == 0:
        pieces = [(b"%07d " % n + b"x" * 91 + b"\\n") * 10000 for n in range(64)]
    elif rank == 1:
        pieces = [b"y" * (1 << 20)] * 32
    else:
        pieces = [random.Random(n).randbytes(1 << 16) for n in range(64)] + [b"\\n"]
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
        left = memoryview(piece)
        while left:
            left = left[os.write(1, left):]
    status = pathlib.Path(f"/proc/{os.getppid()}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    pathlib.Path(f"sum{rank}").write_text(total.hexdigest() + " " + peak.split()[1])
"""


def of_rank(content: bytes, rank: int) -> bytes:
    prefix = b"%d: " % rank
    lines = content.split(b"\n")
    return b"".join(line[len(prefix) :] + b"\n" for line in lines if line.startswith(prefix))


def test_each_cycle_has_a_file(tmp_path: Path) -> None:
    prefix = ("--ft-per-cycle-applog-prefix", str(tmp_path / "logs" / "train.txt"))
    options = ("--nproc-per-node", "2", "--max-restarts", "1", *prefix)
    with launched(tmp_path, CRASH_ONCE, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
    first = (tmp_path / "logs" / "train_cycle0.txt").read_text()
    second = (tmp_path / "logs" / "train_cycle1.txt").read_text()
    assert "1: ValueError: first attempt\n" in first
    for rank in (0, 1):
        expected = f"out of rank {rank} in cycle 1\nerr of rank {rank}\n"
        assert expected.encode() in of_rank(second.encode(), rank)
    assert "out of rank" not in launcher.text
    assert not list((tmp_path / "run" / "logs").glob("attempt_*"))


def test_whatever_ranks_print_is_complete_and_memory_is_bounded(tmp_path: Path) -> None:
    prefix = ("--ft-per-cycle-applog-prefix", str(tmp_path / "all.log"))
    options = ("--nproc-per-node", "3", "--worker-start", "fresh", *prefix)
    with launched(tmp_path, FLOOD, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
    content = (tmp_path / "all_cycle0.log").read_bytes()
    for rank in range(3):
        wanted, peak_kib = (tmp_path / f"sum{rank}").read_text().split()
        printed = of_rank(content, rank)
        sums = {hashlib.sha256(text).hexdigest() for text in (printed, printed[:-1])}
        assert wanted in sums, f"rank {rank}"
        assert int(peak_kib) < 120 * 1024
