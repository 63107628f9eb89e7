"""Bugs that are planted one at a time, and those that no test notices: ``make mutation``.

mutmut plants them in a copy of the checkout: in one module, against the tests that are named.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
_UNNOTICED = ("survived", "no tests")


def settings(module: str, tests: Sequence[str]) -> str:
    """Return the section of pyproject.toml that mutmut reads."""
    chosen = {
        "source_paths": ["src"],
        "only_mutate": [module],
        "also_copy": ["benchmarks", "compat", "examples", "scripts", "simulator", "tests"],
        "pytest_add_cli_args": ["-p", "no:randomly", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": list(tests),
    }
    lines = (f"{name} = {json.dumps(value)}" for name, value in chosen.items())
    return "\n".join(["", "[tool.mutmut]", *lines, ""])


def unnoticed(results: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the bugs that no test has noticed, and why, from ``mutmut results``."""
    for line in results.splitlines():
        name, _, outcome = line.strip().rpartition(": ")
        if name and outcome in _UNNOTICED:
            yield name, outcome


def main(argv: Sequence[str]) -> int:
    """Plant bugs in ``argv[0]``, run the tests of the other arguments; show what is left."""
    if len(argv) < 2:
        print("usage: make mutation MODULE=src/undaunted/X.py TESTS='tests/X ...'")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        copy = Path(place)
        _copy(copy)
        with (copy / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write(settings(argv[0], argv[1:]))
        code, said = _mutmut(copy, "run", shown=sys.stdout.isatty())
        if code:
            print(said[-3000:])
            return 1
        print(said.rpartition("\r")[2].rpartition("\n")[2])
        for name, outcome in unnoticed(_mutmut(copy, "results")[1]):
            print(f"\n{outcome}: {name}\n{_mutmut(copy, 'show', name)[1]}", flush=True)
    return 0


def _copy(place: Path) -> None:
    """Copy the files of the checkout that git knows, or would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name, follow_symlinks=False)


def _mutmut(place: Path, *words: str, shown: bool = False) -> tuple[int, str]:
    command = [sys.executable, "-m", "mutmut", *words]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = None if shown else subprocess.PIPE
    ended = subprocess.run(
        command, cwd=place, env=environ, check=False, stdout=output, stderr=subprocess.STDOUT
    )
    return ended.returncode, (ended.stdout or b"").decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
