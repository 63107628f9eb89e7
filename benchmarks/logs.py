"""What the log of a round costs a rank: ``python -m benchmarks.logs [--dir DIR] [KIND...]``.

A rank prints as fast as it can, in turns to a plain file and under ``undaunted run`` with a log per
round, both in DIR. Each log is compared with what was printed. DIR needs twice the room of what is
printed (20 GB; --mb for less).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.__main__ import machine
from benchmarks.table import cell, paired_ratio
from benchmarks.workloads import prints

if TYPE_CHECKING:
    from collections.abc import Iterator

PRINTS = Path(prints.__file__)
DEFAULT_MB = {"lines": 10_000, "line": 100, "binary": 1000}
PREFIX = b"0: "
DEADLINE_S = 600
Values = dict[str, float]


def main() -> int:
    args = parse_arguments()
    complete = True
    for kind in args.kinds:
        mb = args.mb or DEFAULT_MB[kind]
        plain, ours = [], []
        for _ in range(args.runs):
            plain.append(in_directory(args.dir, plain_file, kind, mb))
            ours.append(in_directory(args.dir, round_log, kind, mb))
            print(kind, plain[-1], ours[-1], file=sys.stderr)
        complete = complete and all(values["complete"] for values in ours)
        print(table(f"{kind}, {mb} MB", plain, ours) + "\n", flush=True)
    print(f"{args.dir}; {machine()}")
    return 0 if complete else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.logs", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*DEFAULT_MB, []], help="all")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where all files go")
    parser.add_argument("--runs", type=int, default=3, help="of each")
    parser.add_argument("--mb", type=int, help=f"to print ({DEFAULT_MB})")
    args = parser.parse_args()
    args.kinds = args.kinds or list(DEFAULT_MB)
    return args


def in_directory(parent, measure, kind: str, mb: int) -> Values:
    with tempfile.TemporaryDirectory(dir=parent, prefix="undaunted-logs-") as name:
        return measure(Path(name), kind, mb)


def plain_file(directory: Path, kind: str, mb: int) -> Values:
    with (directory / "out").open("ab") as out:
        run([sys.executable, PRINTS, kind, str(mb), directory / "figures"], stdout=out)
    found = json.loads((directory / "figures").read_text())
    return {name: found[name] for name in ("MB/s", "longest write, ms")}


def round_log(directory: Path, kind: str, mb: int) -> Values:
    options = ["--run-dir", directory / "run", "--ft-per-cycle-applog-prefix", directory / "log"]
    launcher = [sys.executable, "-m", "undaunted.cli.main", "run", *options]
    run([*launcher, PRINTS, kind, str(mb), directory / "figures"])
    now = time.monotonic()
    found = json.loads((directory / "figures").read_text())
    found["launcher's end after the last write, s"] = now - found.pop("ended")
    found["complete"] = float(is_complete(directory / "log_cycle0.log", kind, mb))
    return found


def run(command, **options) -> None:
    subprocess.run([str(word) for word in command], check=True, timeout=DEADLINE_S, **options)


def is_complete(log: Path, kind: str, mb: int) -> bool:
    """Whether the lines of the log, without prefixes, are what was printed."""
    printed = hashlib.sha256()
    last = b""
    for piece in prints.content(kind, mb):
        printed.update(piece)
        last = piece[-1:]
    if last != b"\n":
        printed.update(b"\n")  # a last line without an end gets one
    logged = hashlib.sha256()
    for piece in without_prefixes(log):
        logged.update(piece)
    return printed.digest() == logged.digest()


def without_prefixes(log: Path) -> Iterator[bytes]:
    rest, first = b"\n", True
    with log.open("rb") as file:
        while data := file.read(8 << 20):
            data = rest + data
            border = data.rfind(b"\n", max(0, len(data) - len(PREFIX)))
            border = len(data) if border < 0 else border
            text, rest = data[:border].replace(b"\n" + PREFIX, b"\n"), data[border:]
            if text:
                yield text[first:]  # the end of line that was put before all
                first = False
    yield rest


def table(title: str, plain: list[Values], ours: list[Values]) -> str:
    lines = [f"| {title} | plain file | log of a round | ratio |", "|---|---|---|---|"]
    for metric in ours[0]:
        one = [values.get(metric) for values in plain]
        other = [values.get(metric) for values in ours]
        ratio = paired_ratio(one, other)
        shown = "-" if ratio is None else f"{ratio:.3g}"
        lines.append(f"| {metric} | {cell(one)} | {cell(other)} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
