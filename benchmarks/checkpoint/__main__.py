"""Time a checkpoint: `python -m benchmarks.checkpoint [--ranks 1 2] [--rounds 9]`.

Two states: 1 GiB (`--gib`) in 900 tensors (`--tensors`), and 3,000 tensors of 64 numbers. Of each
contender: how long the caller is stopped (stall), when all is on disk (total), loading with the
page cache emptied (cold; only root can do that) and full (warm). "raw" is what the machine can do:
copying the state into warm memory, writing and reading it past the page cache, and (warm) one read
from it. All take turns in one process per rank; shown are medians and the range of the rounds, and
the ratio to raw.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WHATS = ("first stall", "stall", "total", "load cold", "load warm")
LIMIT_S = 3600
SMALL = 3000

Values = dict[str, dict[str, list[float]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--states", nargs="+", choices=["large", "small"], default=["large", "small"]
    )
    parser.add_argument("--only", nargs="+", default=[], help="contenders (default: all)")
    parser.add_argument("--loads", action="store_true", help="save in the first round only")
    parser.add_argument("--dir", type=Path, help="on the disk to be used (default: temporary)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the tensors")
    parser.add_argument("--gib", type=int, default=1, help="of the large state [1]")
    parser.add_argument("--tensors", type=int, default=900, help="of the large state [900]")
    parser.add_argument("--json", type=Path, help="file for all values")
    args = parser.parse_args()
    everything = {}
    states = {
        f"{args.gib} GiB, {args.tensors} tensors": (args.tensors, args.gib << 30),
        "3,000 tensors of 64 numbers": (SMALL, SMALL * 256),
    }
    for title, (tensors, size) in states.items():
        if ("small" if tensors == SMALL else "large") not in args.states:
            continue
        for ranks in args.ranks:
            values = run(ranks, tensors, size, args)
            everything[f"{title}, {ranks} ranks"] = values
            load = os.getloadavg()[0]
            print(f"\n{title}, ranks: {ranks}, load: {load:.1f}\n\n{table(values)}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))


def run(ranks: int, tensors: int, size: int, args: argparse.Namespace) -> Values:
    """Run one job of this many ranks; return what it measured."""
    with tempfile.TemporaryDirectory(dir=args.dir) as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        request = {
            "tensors": tensors,
            "bytes": size,
            "folder": folder,
            "rounds": args.rounds,
            "only": args.only,
            "loads": args.loads,
            "device": args.device,
        }
        processes = [start(rank, ranks, port, request) for rank in range(ranks)]
        output, _ = processes[0].communicate(timeout=LIMIT_S)
        codes = [process.wait(LIMIT_S) for process in processes]
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    values: Values = json.loads(line.removeprefix("RESULT "))
    return values


def start(rank: int, ranks: int, port: int, request: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.checkpoint.worker", json.dumps(request)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        env={
            **os.environ,
            **({"OMP_NUM_THREADS": "1"} if ranks > 1 else {}),  # as launchers do
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        },
    )


def table(values: Values) -> str:
    lines = ["| | " + " | ".join(WHATS) + " |", "|---" * (len(WHATS) + 1) + "|"]
    for name, measured in values.items():
        cells = [cell(measured.get(what), values["raw"].get(what)) for what in WHATS]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def cell(seconds: list[float] | None, raw: list[float] | None) -> str:
    """Return median, range and the ratio to the machine's own."""
    if not seconds:
        return "-"
    middle = statistics.median(seconds)
    text = f"{middle:.3f} s"
    if len(seconds) > 1:
        text += f" ({min(seconds):.3f}-{max(seconds):.3f})"
    if raw:
        ratios = [mine / base for mine, base in zip(seconds, raw, strict=True)]
        text += f", {statistics.median(ratios):.2f}x"
    return text


if __name__ == "__main__":
    main()
