"""Adapters can be imported where their frameworks are not installed, and know no other adapter."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import undaunted.integrations

PROGRAM = """
import importlib, pkgutil
import undaunted.integrations as package
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
    print(module.name)
"""
NAMES = ("nemo_run", "ray", "torchtitan", "torchx")


def test_every_adapter_is_imported_without_frameworks() -> None:
    assert not [name for name in NAMES if find_spec(name) is not None]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    adapters = {f"undaunted.integrations.{name}" for name in NAMES}
    assert adapters <= set(done.stdout.split())


# Of no framework: what several adapters need.
SHARED = {"replaced", "requirements", "resuming"}
# A framework's second file; and NeMo-Run starts recipes of Megatron Bridge, whose plugins it has.
ALLOWED = {"nemo_run": {"megatron"}, "ray": {"ray_nodes"}}
ALLOWED |= {name: {f"{name}_data"} for name in ("torchtitan", "transformers")}


def test_no_adapter_imports_another() -> None:
    package = "undaunted.integrations."
    folder = Path(undaunted.integrations.__path__[0])
    wrong = []
    for path in folder.rglob("*.py"):
        adapter = path.relative_to(folder).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            used = {name.split(".")[2] for name in names if name.startswith(package)}
            others = used - SHARED - ALLOWED.get(adapter, set()) - {adapter}
            wrong += [f"{path.name}:{node.lineno} imports {other}" for other in others]
    assert not wrong
