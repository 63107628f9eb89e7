"""A file system that is full, for real: a small tmpfs in a mount namespace."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

UNSHARE = ["unshare", "--map-root-user", "--mount"]
MOUNT = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"'

SAVE = """
import os, sys
from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.writer.job import WriterOptions
from undaunted.checkpointing.writer.process import Writer

folder = sys.argv[1]
lease = Pool(1, "arena", "wait").lease(2 << 20, 60)
writer = Writer(folder, WriterOptions())
files = [Image("small", 0, 300_000), Image("large", 0, 2 << 20)]
try:
    writer.write(lease, folder + "/a", files, 60)
except SaveError as error:
    print(error.errno, error)
print(os.listdir(folder + "/a"))
print(writer.write(lease, folder + "/b", files[:1], 60).bytes)
writer.close(60)
"""

START = """
import os, sys, torch
from undaunted.checkpointing import Checkpointer

folder = sys.argv[1] + "/c"
with Checkpointer(folder, timeout=60) as checkpoints:
    checkpoints.save(1, {"x": torch.ones(3)})
os.environ["TORCHELASTIC_RUN_ID"], os.environ["UNDAUNTED_ROUND_EPOCH"] = "run", "1"
left = folder + "/.step-00000002.dead-10"
os.mkdir(left)
with open(left + "/__0_0.distcp", "wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)): pass
    except OSError as error:
        print("full", error.errno)
x = torch.zeros(3)
with Checkpointer(folder, timeout=60) as checkpoints:
    print("loaded", checkpoints.load({"x": x}), x.tolist())
    checkpoints.save(2, {"x": x})
print(sorted(os.listdir(folder)))
"""


def run_on_1_mib(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script whose argument is a small file system of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1)")
    command = [*UNSHARE, "sh", "-c", MOUNT, "sh", str(tmp_path), sys.executable]
    if subprocess.run([*command, "pass"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a tmpfs in a namespace of its own")
    return subprocess.run([*command, script], capture_output=True, text=True, check=True)


@pytest.mark.e2e
@pytest.mark.torch
def test_a_disk_that_is_full_of_what_a_dead_session_has_left(tmp_path: Path) -> None:
    """Neither the number of the round nor the session can be noted before that is removed."""
    pytest.importorskip("torch")
    done = run_on_1_mib(tmp_path, START)
    assert done.stdout.splitlines() == [
        "full 28",
        "loaded 1 [1.0, 1.0, 1.0]",
        "['.epoch', 'step-00000001', 'step-00000002']",
    ]


@pytest.mark.e2e
def test_a_full_disk(tmp_path: Path) -> None:
    done = run_on_1_mib(tmp_path, SAVE)
    said = done.stdout.splitlines()
    assert said[0].startswith(f"28 {tmp_path}/a/large: No space left on device (2097152 bytes are")
    assert "are free) [ENOSPC]; free space there" in said[0]
    assert said[1:] == ["[]", "300000"]
    assert done.stderr == ""
