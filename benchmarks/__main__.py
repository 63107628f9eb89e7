"""Run the benchmarks: `python -m benchmarks [--quick] [--json FILE] [NAME...]`.

The launchers take turns (A B A B ...), so that a change of the machine's load meets all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import calls
from benchmarks.cases import Case, Values, all_cases
from benchmarks.launchers import Launcher, available
from benchmarks.stage import StageError
from benchmarks.table import Result, markdown
from undaunted.base.process import become_subreaper, end_descendants

if TYPE_CHECKING:
    from collections.abc import Sequence

RANKS = (1, 2, 8)
PAIRS = 9
PACKAGES = ("undaunted", "torch", "nvidia-resiliency-ext")
QUICK_RANKS = (2,)
QUICK_PAIRS = 3
SWEEP_S = 5.0


def main() -> int:
    args = parse_arguments()
    become_subreaper()  # whatever a launcher leaves behind becomes visible, and is ended
    results = []
    for case in args.cases:
        results.append(run_case(case, available(), args.pairs))
        print(markdown(results[-1:]) + "\n", flush=True)
        if args.json:
            write_json(args.json, results)
    for name in args.calls:
        print(calls.table(name, calls.measure(name)) + "\n", flush=True)
    print(machine())
    return 1 if any(result.failures for result in results) else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure launchers against each other."
    )
    names = [*dict.fromkeys(case.name for case in all_cases(RANKS)), *calls.PROGRAMS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all")
    parser.add_argument("--quick", action="store_true", help="2 ranks, 3 pairs: does it work?")
    parser.add_argument("--pairs", type=int, help=f"runs of each launcher per case ({PAIRS})")
    parser.add_argument("--ranks", type=int, action="append", help=f"ranks {RANKS}; repeatable")
    parser.add_argument("--json", type=Path, help="file for all values of the launchers")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(names)):
        parser.error(f"no benchmark named {', '.join(unknown)}: there are {', '.join(names)}")
    ranks = tuple(args.ranks or (QUICK_RANKS if args.quick else RANKS))
    args.pairs = args.pairs or (QUICK_PAIRS if args.quick else PAIRS)
    args.calls = [name for name in calls.PROGRAMS if not args.names or name in args.names]
    args.cases = [case for case in all_cases(ranks) if not args.names or case.name in args.names]
    return args


def run_case(case: Case, launchers: Sequence[Launcher], pairs: int) -> Result:
    result = Result(case.name, case.title, case.ranks)
    usable = [one for one in launchers if one.detects_hangs or not case.needs_hang_detection]
    for number in range(pairs):
        for launcher in usable:
            print(
                f"{case.name}, {case.ranks} ranks, {case.title}: {launcher.name}, "
                f"{number + 1} of {pairs}",
                file=sys.stderr,
            )
            result.add(launcher.name, number, attempt(case, launcher, result.failures))
    return result


def attempt(case: Case, launcher: Launcher, failures: list[str]) -> Values:
    """Run once; a failure, or processes left behind, are noted and do not end the benchmark."""
    values: Values = {}
    try:
        values = case.measure(launcher)
    except StageError as error:
        print(error, file=sys.stderr)
        failures.append(str(error))
    if left := len(end_descendants(SWEEP_S)):
        failures.append(f"{launcher.name} left {left} processes behind")
    return values


def write_json(path: Path, results: Sequence[Result]) -> None:
    content = {"machine": machine(), "results": [asdict(result) for result in results]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def machine() -> str:
    """Return one line that says where and when this was measured."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    packages = ", ".join(f"{name} {found}" for name in PACKAGES if (found := version_of(name)))
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{os.cpu_count()} cores ({model}), Linux {platform.release()}, Python "
        f"{platform.python_version()}, {packages}; load {load} at the end; "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
