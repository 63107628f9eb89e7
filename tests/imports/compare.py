"""Compares a worker that was forked with packages imported with new processes that import them.

`.venv-integrations/lightning/bin/python -m tests.imports.compare "import lightning.pytorch"` prints
packages that these statements import, and why some of them cannot be imported ahead of the ranks.
Packages without a reason may be put into `known_imports.PACKAGES`, numbers that follow a
variable of the rank into `known_imports.RANK_VALUES`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tests.imports import likeness
from tests.imports.likeness import Snapshot
from undaunted.base import child
from undaunted.fault_tolerance.worker import import_notes
from undaunted.fault_tolerance.worker.import_notes import RankImports
from undaunted.fault_tolerance.worker.imports import Imports, be_silent, set_variables
from undaunted.fault_tolerance.worker.known_imports import RANK_VALUES
from undaunted.fault_tolerance.worker.messages import Learned
from undaunted.fault_tolerance.worker.numerics import TEMPLATE_ENVIRONMENT
from undaunted.fault_tolerance.worker.warm_imports import UnfitError, WarmImports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Each number of the first rank is another one: so it can be told which variable a value comes from.
_NUMBERS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_OTHERS = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "OPENBLAS_NUM_THREADS": "4"}
RANKS = (
    dict(zip(_NUMBERS, ("1", "3", "5", "7", "11"), strict=True)) | _OTHERS,
    dict(zip(_NUMBERS, ("0", "0", "0", "2", "2"), strict=True)) | _OTHERS,
)
# Imported by every template before.
BASE = ("torch", "numpy")
LIMIT_S = 500.0
# Differences that packages expect, in the words of `likeness`.
HARMLESS = re.compile(
    r"\._pid is \d+ in all ranks"  # fsspec: in a process with another number it forgets its caches
    r"|joblib\._multiprocessing_helpers\.name is"  # of a semaphore that is gone after the import
)
_MOST_TEMPLATES = 12


class Comparison(msgspec.Struct):
    """``packages`` were imported; ``left``: package -> why the ranks have to import it."""

    packages: list[str]
    left: dict[str, list[str]]


class _Unfit(msgspec.Struct, tag=True):
    left: dict[str, str]


def compare(statements: Sequence[str]) -> Comparison:
    """Import what these statements import, in a template and in new processes."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        imports = _in_process("note", "\n".join(statements), folder, RANKS[0], RankImports)
        left: dict[str, list[str]] = {}
        for _ in range(_MOST_TEMPLATES):
            learned = Learned(
                groups=imports.groups,
                packages=imports.packages,
                own=imports.own,
                left=sorted(left),
            )
            given = msgspec.json.encode(learned).decode()
            of_new = [
                threads.submit(_in_process, "new", given, folder, RANKS[rank], Snapshot)
                for rank in (0, 0, 1)
            ]
            template = _in_process("fork", given, folder, TEMPLATE_ENVIRONMENT, Snapshot | _Unfit)
            if isinstance(template, _Unfit):
                left |= {package: [reason] for package, reason in template.left.items()}
                continue
            set_again = {(value.module, value.name) for value in RANK_VALUES}
            snapshots = [each.result() for each in of_new]
            differences = likeness.compare(snapshots, template, RANKS, set_again)
            for package, reasons in differences.items():
                if harmful := [each for each in reasons if not HARMLESS.search(each)]:
                    left[package] = harmful
            packages = {name.partition(".")[0] for each in imports.groups for name in each.modules}
            return Comparison(sorted(packages), left)
    raise AssertionError(f"too many packages cannot be imported: {left}")


def _in_process(mode, given, folder, environment, kind):
    files = Path(tempfile.mkdtemp(dir=folder))
    path, answer = files / "given", files / "answer"
    path.write_text(given, "utf-8")
    own = {k: v for k, v in os.environ.items() if k not in RANKS[0]}
    own["PYTHONHASHSEED"] = "0"  # values in the order of a set: the same in all processes
    words = ["-m", "tests.imports.compare", "--in-process", mode, str(path), str(answer)]
    environment = {**own, **environment}
    end = child.run(child.Program([sys.executable, *words], LIMIT_S, env=environment, merged=True))
    if not answer.exists():
        raise AssertionError(f"{mode} ended with {end.code}:\n{end.output.decode()[-2000:]}")
    return msgspec.msgpack.decode(answer.read_bytes(), type=kind)


def _note(given: str) -> RankImports | None:
    import_notes.begin(os.environ.copy())
    exec(given, {"__name__": "__main__"})
    return import_notes.decode(import_notes.answer())


def _fork(given: str) -> Snapshot | _Unfit | None:
    learned = msgspec.json.decode(given, type=Learned)
    _load_base()
    warm = WarmImports()
    try:
        warm.load(learned)
    except UnfitError as error:
        return _Unfit(error.left)
    if pid := os.fork():
        os.waitpid(pid, 0)  # bounded: this process is killed at its limit
        return None
    os.environ.update(RANKS[0])
    warm.begin_worker(os.environ)
    variables = {name: (value, "?") for name, value in warm.variables.items()}
    return Snapshot(os.getpid(), likeness.values(warm.modules), variables)


def _new(given: str) -> Snapshot:
    learned = msgspec.json.decode(given, type=Learned)
    _load_base()
    imports, variables = Imports(), dict[str, tuple[str, str]]()
    for group in learned.groups:
        set_variables(group.environment)
        for name in group.modules:
            if (package := name.partition(".")[0]) not in learned.left:
                before = os.environ.copy()
                imports.load(name)
                changed = import_notes.changes(before, os.environ.copy())
                variables |= {each: (value or "", package) for each, value in changed.items()}
    return Snapshot(os.getpid(), likeness.values(imports.done), variables)


def _load_base() -> None:
    for name in BASE:
        Imports().load(name)


def main() -> None:
    if sys.argv[1] != "--in-process":
        found = compare(sys.argv[1:])
        print("packages:", *found.packages)
        for package, reasons in found.left.items():
            print(f"{package}:", *reasons, sep="\n    ")
        return
    be_silent(1)
    mode, given, path = sys.argv[2:]
    del sys.argv[1:]  # which packages may keep: the same in all processes
    modes: dict[str, Callable] = {"note": _note, "fork": _fork, "new": _new}
    answer = modes[mode](Path(given).read_text("utf-8"))
    if answer is not None:
        Path(path).write_bytes(msgspec.msgpack.encode(answer))
    os._exit(0)


if __name__ == "__main__":
    main()
