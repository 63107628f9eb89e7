"""Standing back, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from undaunted.checkpointing.files.priority import check, lower

LOWERED = """
import os
from undaunted.checkpointing.files.priority import lower
lower(15, "idle")
print(os.getpriority(os.PRIO_PROCESS, 0))
print(open("/proc/self/stat").read().rpartition(")")[2].split()[16])
"""


@pytest.mark.e2e
def test_lower() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOWERED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["15", "15"]


def test_a_system_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    lower(-20, None)


def test_what_would_not_be_understood() -> None:
    check(10, None)
    check(-20, "idle")
    with pytest.raises(ValueError, match="nice=20"):
        check(20, None)
    with pytest.raises(ValueError, match="'realtime': give one of best-effort, idle"):
        check(0, "realtime")
