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


def test_every_adapter_is_imported_without_frameworks() -> None:
    assert find_spec("torchx") is None
    assert find_spec("nemo_run") is None
    assert find_spec("ray") is None
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    adapters = {f"undaunted.integrations.{name}" for name in ("nemo_run", "ray", "torchx")}
    assert adapters <= set(done.stdout.split())
