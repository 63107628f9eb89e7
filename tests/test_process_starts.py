"""Programs of ours are started in one way, which keeps the current directory out of their imports.

``python -m`` and ``python -c`` put it first: a ``logging.py`` that lies there would be run.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from undaunted.base import process
from undaunted.fault_tolerance.launch import _LAUNCHER

SRC = Path(__file__).parent.parent / "src" / "undaunted"
DEADLINE_S = 60.0

# Where an interpreter is named, how often, and why that starts no program of ours.
NAMED = {
    "base/process.py": 2,  # the one place
    "cli/doctor.py": 1,  # the user's program
    "cli/program.py": 2,  # the user's program
    "cli/run.py": 1,  # the user's program
    "cli/srun.py": 1,  # the user's program
    "fault_tolerance/launch.py": 1,  # the user's program
    "inprocess/guard/start.py": 1,  # what to try, in an error message
}

# Everything that is started as a module.
PROGRAMS = (
    "undaunted.attribution.flight.reader",
    "undaunted.chaos.nemesis.slow_network",
    "undaunted.chaos.nemesis.small_disk",
    "undaunted.chaos.nemesis.stage",
    "undaunted.checkpointing.keeping.last",
    "undaunted.checkpointing.writer.program",
    "undaunted.cli.main",
    "undaunted.fault_tolerance.output.server.program",
    "undaunted.inprocess.guard.program",
)


def _count(is_one) -> dict[str, int]:
    """How often something occurs in each file of ours."""
    found: Counter[str] = Counter()
    for path in sorted(SRC.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        found[str(path.relative_to(SRC))] += sum(map(is_one, ast.walk(tree)))
    return {name: count for name, count in found.items() if count}


def _names_interpreter(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"


def _starts_by_multiprocessing(node: ast.AST) -> bool:
    ways = {"get_context", "set_start_method", "Process"}
    name = node.func if isinstance(node, ast.Call) else None
    return getattr(name, "attr", getattr(name, "id", "")) in ways


def test_an_interpreter_is_named_in_one_place():
    assert _count(_names_interpreter) == NAMED


def test_nothing_is_started_by_multiprocessing():
    assert _count(_starts_by_multiprocessing) == {}


@pytest.fixture
def decoys(tmp_path):
    """A directory with a module of every name that our programs may import."""
    for name in (*sys.stdlib_module_names, "undaunted", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a decoy was imported')")
    return tmp_path


def _said(command: list[str], directory: Path) -> str:
    """What a program says that is given no input and nothing of use."""
    done = subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("module", PROGRAMS)
def test_a_program_imports_nothing_from_the_current_directory(module, decoys):
    assert "a decoy was imported" not in _said(process.module_command(module), decoys)


def test_flags_are_kept(decoys):
    command = process.module_command("undaunted.inprocess.guard.program", flags=["-S"])
    assert "a decoy was imported" not in _said(command, decoys)
    assert command[1] == "-S"


def test_a_launcher_that_is_called_imports_nothing_from_the_current_directory(decoys):
    command = process.code_command(_LAUNCHER, "0", str(decoys / "stderr"), "run", "--help")
    assert "a decoy was imported" not in _said(command, decoys)


def test_a_program_is_recognised_in_a_list_of_processes():
    """``ps`` may cut off the end of a line, where the arguments are."""
    command = process.module_command("undaunted.cli.main", "--version", flags=["-S"])
    code = command[command.index("-c") + 1]
    assert code.startswith("'undaunted.cli.main'")


def test_a_program_gets_its_arguments_and_is_the_main_module(tmp_path):
    said = _said(process.module_command("undaunted.cli.main", "--version"), tmp_path)
    assert said.startswith("undaunted ")


def test_our_package_is_this_one_and_hides_no_other(tmp_path):
    code = "import undaunted; print(undaunted.__file__); print(sys.path[-1])"
    ours, last = _said(process.code_command(code), tmp_path).split()
    assert Path(ours) == SRC / "__init__.py"
    assert Path(last) == SRC.parent


def test_the_decoys_are_found_where_nothing_keeps_them_out(decoys):
    command = [sys.executable, "-m", "undaunted.cli.main"]
    assert "a decoy was imported" in _said(command, decoys)
