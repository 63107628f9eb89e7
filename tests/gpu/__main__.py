"""What is built and needs a GPU, checked on the GPU of this machine: ``python -m tests.gpu``.

Every row of `rows.ROWS` runs in a process of its own with a deadline, so that none can stop the
others. The end is a table and one line of JSON. Needs torch and the dependencies of undaunted, no
network and no installation: src on PYTHONPATH is enough. The exit code is 0 if every row is as it
should be, 1 if one is not, 3 if this machine has no GPU that torch can use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu import rows as product_rows
from tests.gpu.row import NotShown, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALL_S = 460.0  # for all rows together
NO_GPU = 3
_PROBE_S = 120.0
_SHOWN = 6000  # characters of what a bad row has printed
_PROBE = """
import json, torch
there = torch.cuda.is_available()
found = {"torch": torch.__version__, "cuda": torch.version.cuda}
if there:
    found |= {"gpu": torch.cuda.get_device_name(0), "gpus": torch.cuda.device_count()}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Result:
    """How a row ended.

    Attributes:
        row: its name.
        status: ok, failed, "no end" (within its deadline), "no device", "not shown".
        seconds: it took.
        detail: what was seen, or what went wrong.
    """

    row: str
    status: str
    seconds: float = 0.0
    detail: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether something has to be mended."""
        return self.status in ("failed", "no end")


def run_row(row: Row, command: Sequence[str], limit_s: float) -> Result:
    """Run one row in a process of its own; what it started ends with it.

    Args:
        row: which.
        command: that calls it; it gets a file for its answer and a folder as further arguments.
        limit_s: when it is ended.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"gpu-{row.name}-") as folder:
        answer, output = Path(folder, "answer.json"), Path(folder, "output.txt")
        inside = Path(folder, "row")
        inside.mkdir()
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*command, str(answer), str(inside)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
            ended = _wait(process, limit_s)
        took = round(time.monotonic() - began, 1)
        result = Result(row.name, "failed", took, f"exit {process.returncode}; {_end(output)}")
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            told = json.loads(answer.read_text())
            result = Result(row.name, told["status"], took, told["detail"])
        if not ended:
            detail = f"ended after {limit_s:.0f} s; {_end(output)}"
            result = Result(row.name, "no end", took, detail)
        if result.is_bad:
            print(output.read_text(errors="replace")[-_SHOWN:], file=sys.stderr)
        return result


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    return True


def _end(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-3:]) or "it said nothing"


def answer_of(row: Row, folder: Path) -> dict[str, str]:
    """Call a row, in this process; return what is to be told of it."""
    try:
        return {"status": "ok", "detail": row.check(folder)}
    except NotShown as reason:
        return {"status": "not shown", "detail": str(reason)}
    except Exception as error:  # whatever it is, it is the row's result
        import traceback

        traceback.print_exc()
        return {"status": "failed", "detail": f"{type(error).__name__}: {error}"[:600]}


def machine() -> dict[str, object]:
    """Return what torch says of this machine; without ``gpu`` where it can use none."""
    command = [sys.executable, "-c", _PROBE]
    found: dict[str, object] = {}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S)
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        found = {"problem": f"torch does not answer: {type(error).__name__}"}
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {**found, "python": sys.version.split()[0], "date": now}


def table(results: Sequence[Result], rows: Sequence[Row]) -> str:
    """Return the results as text, one row each."""
    what = {row.name: row.what for row in rows}
    width = max(len(row.name) for row in rows)
    lines = []
    for one in results:
        lines.append(f"{one.row:<{width}}  {one.status:<9}  {one.seconds:5.1f} s  {what[one.row]}")
        if one.detail:
            lines.append(f"{'':<{width}}    {one.detail}")
    return "\n".join(lines)


def run_all(
    rows: Sequence[Row], here: Mapping[str, object], command: Sequence[str]
) -> list[Result]:
    """Return the results of all rows, in their order.

    Args:
        rows: all of them.
        here: the machine.
        command: that calls a row; its name and what `run_row` adds are further arguments.
    """
    until = time.monotonic() + ALL_S
    results = []
    for row in rows:
        if row.needs_several:
            result = Result(row.name, "not shown", detail="not shown on one GPU")
        elif "gpu" not in here:
            result = Result(row.name, "no device")
        else:
            left = max(1.0, until - time.monotonic())
            result = run_row(row, [*command, row.name], min(row.limit_s, left))
        print(f"{result.status}: {row.name}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def main(arguments: Sequence[str] | None = None, rows: Sequence[Row] = product_rows.ROWS) -> int:
    """Run all rows, or one in this process with ``--row NAME ANSWER FOLDER``."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--row", nargs=3, metavar=("NAME", "ANSWER", "FOLDER"), help="of itself")
    parser.add_argument("--only", metavar="NAMES", help="rows, separated by commas")
    parser.add_argument("--json", metavar="FILE", help="write the JSON there as well")
    options = parser.parse_args(arguments)
    if options.row:
        name, answer, folder = options.row
        (row,) = (row for row in rows if row.name == name)
        os.chdir(folder)
        Path(answer).write_text(json.dumps(answer_of(row, Path(folder))))
        return 0
    wanted = options.only.split(",") if options.only else [row.name for row in rows]
    if unknown := set(wanted) - {row.name for row in rows}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    here = machine()
    chosen = [row for row in rows if row.name in wanted]
    results = run_all(chosen, here, [sys.executable, "-m", "tests.gpu", "--row"])
    return report(here, results, chosen, options.json)


def report(
    here: Mapping[str, object], results: Sequence[Result], rows: Sequence[Row], file: str | None
) -> int:
    """Print table and JSON; return the exit code."""
    print(", ".join(f"{key} {value}" for key, value in here.items()))
    print(table(results, rows))
    text = json.dumps({"machine": dict(here), "rows": [asdict(one) for one in results]})
    print(text)
    if file:
        Path(file).write_text(text + "\n")
    if "gpu" not in here:
        print(f"no GPU that torch can use: nothing was checked (exit code {NO_GPU})")
        return NO_GPU
    return int(any(one.is_bad for one in results))


if __name__ == "__main__":
    sys.exit(main())
