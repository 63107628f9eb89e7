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
from undaunted.checkpointing.writer.handle import WriterProcess

folder = sys.argv[1]
fd = os.memfd_create("arena")
os.truncate(fd, 2 << 20)
handle = WriterProcess(folder)
handle.share(0, fd, 2 << 20)
files = [Image("small", 0, 300_000), Image("large", 0, 2 << 20)]
try:
    handle.write(folder + "/a", 0, files, 60)
except SaveError as error:
    print(error.errno, error)
print(os.listdir(folder + "/a"))
print(handle.write(folder + "/b", 0, files[:1], 60).bytes)
handle.close(60)
"""


@pytest.mark.e2e
def test_a_full_disk(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1)")
    command = [*UNSHARE, "sh", "-c", MOUNT, "sh", str(tmp_path), sys.executable]
    if subprocess.run([*command, "pass"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a tmpfs in a namespace of its own")
    done = subprocess.run([*command, SAVE], capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert said[0].startswith(f"28 {tmp_path}/a/large: No space left on device (2097152 bytes are")
    assert "are free) [ENOSPC]; free space there" in said[0]
    assert said[1:] == ["[]", "300000"]
    assert done.stderr == ""
