"""The template, which takes longest to begin, is started before anything slow is imported."""

from __future__ import annotations

import subprocess
import sys

SLOW = {"asyncio", "difflib", "hashlib", "logging", "shutil", "ssl", "threading"}


def test_nothing_slow_is_imported_before_the_template() -> None:
    code = "import sys, undaunted.fault_tolerance.agent.start; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert SLOW & set(done.stdout.split()) == set()
