"""The launcher side runs, and starts fast, on a machine without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import SRC, modules

# Rooms of the ranks: their modules may need torch. What a launcher, or a process that only writes,
# takes from them may not.
RANKS_ROOMS = ("checkpointing", "data", "digests", "inprocess", "integrations.megatron", "training")
WITHOUT_TORCH = ("files", "format", "keeping", "writer")  # of checkpointing
# Run by path, never imported.
PROGRAMS = frozenset({"undaunted.fault_tolerance.worker.boot"})

# Too slow, or not there, for what runs at every start of a launcher.
HEAVY = ("torch", "numpy", "rich", "asyncio", "multiprocessing", "http", "email", "urllib.request")
HEAVY_FOR_USERS = (*HEAVY, "msgspec", "logging", "subprocess", "argparse")

MISSING = re.compile(r"import of (torch|numpy)\b|No module named '(torch|numpy)\b")

IMPORT_ALL = """
import importlib, json, sys, traceback
sys.modules["torch"] = sys.modules["numpy"] = sys.modules["threadpoolctl"] = None
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except Exception:
        failed[name] = traceback.format_exc(limit=-2)
print(json.dumps(failed))
"""


def python(code: str, *args: str) -> str:
    """Runs code with nothing but the standard environment; returns what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SRC)!r})\n{code}", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def loaded_by(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of the modules are loaded after the code ran."""
    ask = f"import json\nprint(json.dumps([n for n in {names!r} if n in sys.modules]))"
    loaded: list[str] = json.loads(python(f"{code}\n{ask}").splitlines()[-1])
    return loaded


def may_need_torch(name: str) -> bool:
    _, _, path = name.partition(".")
    no = tuple(f"checkpointing.{folder}." for folder in WITHOUT_TORCH)
    return path.startswith(tuple(f"{room}." for room in RANKS_ROOMS)) and not path.startswith(no)


def test_every_launcher_side_module_imports_without_torch() -> None:
    names = [name for name in modules() if name not in PROGRAMS]
    failed = json.loads(python(IMPORT_ALL, json.dumps(names)))
    wrong = {
        name: why
        for name, why in failed.items()
        if not may_need_torch(name) or not MISSING.search(why)
    }
    assert not wrong, "\n".join(
        f"{name} (launcher side) does not import without torch:\n{why}"
        for name, why in wrong.items()
    )


def test_listed_modules_exist() -> None:
    assert set(modules()) >= PROGRAMS


def test_import_of_the_package_is_light() -> None:
    assert loaded_by("import undaunted", HEAVY_FOR_USERS) == []


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["--version"], ["checkpoint", "--help"]]
)
def test_the_command_is_light(arguments: list[str]) -> None:
    pytest.importorskip("undaunted.cli.main", reason="the command line is not there")
    code = (
        "from undaunted.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass"
    )
    assert loaded_by(code, HEAVY) == []


def test_sources_are_under_src() -> None:
    assert Path(python("import undaunted; print(undaunted.__path__[0])").strip()).parent == SRC
