"""Two ranks save to a disk that has no room for both: what one has written does not stay."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "full_disk_program.py"
DEADLINE_S = 90.0
UNSHARE = ["unshare", "--map-root-user", "--mount"]
MOUNT = 'mount -t tmpfs -o size=5m tmpfs "$1" && exec "$2" "$3" "$1"'

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(DEADLINE_S + 30)]


def test_a_save_that_failed_leaves_nothing(tmp_path: Path) -> None:
    """So that the next one has the space: nobody else would remove it before the next start."""
    pytest.importorskip("torch")
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1)")
    command = [*UNSHARE, "sh", "-c", MOUNT, "sh", str(tmp_path), sys.executable]
    if subprocess.run([*command, os.devnull], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a tmpfs in a namespace of its own")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("UNDAUNTED")}
    inherited |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(PROGRAM)],
        env=inherited,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "after step 1 ['step-00000001']",
        "after step 2 ['step-00000001']",
        "after step 3 ['step-00000001']",
        "closed ['step-00000004']",
    ]
