"""Adapters can be imported where their frameworks are not installed, as in `.venv`."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

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
