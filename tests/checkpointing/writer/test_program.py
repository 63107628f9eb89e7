"""The program of the writer process: it ends when its trainer does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.writer.processes import LONG_S
from tests.test_torch_absent import loaded_by
from undaunted.base import process

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

# A trainer: starts a writer, with a job that does not end, and waits to be killed.
TRAINER = """
import json, os, signal, sys, threading
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.writer.handle import WriterProcess
from undaunted.checkpointing.writer.options import WriterOptions

folder, how = sys.argv[1:]
fd = os.memfd_create("arena")
os.truncate(fd, 1 << 20)
handles = []

def start():
    handle = WriterProcess(folder, WriterOptions(bandwidth=1.0))
    handle.share(0, fd, 1 << 20)
    handle.write(folder + "/empty", 0, [], 60)
    job = (folder + "/a", 0, [Image("file", 0, 1 << 20)], 60, 65536)
    threading.Thread(target=handle.write, args=job, daemon=True).start()
    handles.append(handle)

if how == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
child = 0
if how == "forked":
    child = os.fork()
    if not child:
        signal.pause()
pid = handles[0].pid
if how == "stopped":
    os.kill(pid, signal.SIGSTOP)
print(json.dumps([pid, child]), flush=True)
if how == "exits":
    os._exit(0)
signal.pause()
"""


@pytest.mark.parametrize("how", ["killed", "exits", "stopped", "thread", "forked"])
def test_no_orphan_is_left(tmp_path: Path, how: str) -> None:
    """Also where a thread started it that has ended, and where a fork keeps its socket open."""
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(tmp_path), how], stdout=subprocess.PIPE
    )
    assert trainer.stdout is not None
    with trainer, trainer.stdout:
        pid, child = json.loads(trainer.stdout.readline())
        pidfd = process.open_pidfd(pid)
        try:
            assert pidfd is not None
            if how == "thread":
                assert not process.wait_pidfd(pidfd, 0.2)
            trainer.kill()
            assert process.wait_pidfd(pidfd, LONG_S)
        finally:
            if pidfd is not None:
                os.close(pidfd)
            if child:
                os.kill(child, signal.SIGKILL)


def test_its_imports_are_few() -> None:
    heavy = (
        "torch", "numpy", "asyncio", "logging", "subprocess", "argparse", "multiprocessing",
        "dataclasses", "tempfile", "shutil", "site", "rich", "fsspec",
    )  # fmt: skip
    assert loaded_by("import undaunted.checkpointing.writer.program", heavy) in ([], ["site"])
