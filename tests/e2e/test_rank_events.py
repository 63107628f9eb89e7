"""What a rank tells about itself never holds it up, whatever becomes of the journal."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EVENTS = 20_000
SCRIPT = f"""
import os, undaunted
undaunted.step(0)
agent = int(os.environ["UNDAUNTED_PAGE"].rpartition(":")[2])
BEFORE
try:
    for number in range({EVENTS}):
        undaunted.event("mine", str(number))
        undaunted.step(number)
        with undaunted.section("work"):
            pass
finally:
    AFTER
print("all told", flush=True)
"""
FILL = """
def fill(directory):
    try:
        with open(directory + "/filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
    except OSError:
        pass
"""
OPTIONS = ("--nproc-per-node", "1", "--node-name", "n0", "--worker-start", "fresh")


def script(before: str = "pass", after: str = "pass") -> str:
    return SCRIPT.replace("BEFORE", before).replace("AFTER", after)


def test_the_launcher_is_stopped(tmp_path: Path) -> None:
    """Were the rank to wait for it, nobody would let it go on."""
    stopping = script("os.kill(agent, 19)", "os.kill(agent, 18)")
    with launched(tmp_path, stopping, *OPTIONS) as launcher:
        assert launcher.finish() == 0, launcher.text
    mine = [event for event in launcher.events("rank_event") if event["name"] == "mine"]
    lost = [event["count"] for event in launcher.events("rank_events_lost")]
    assert len(mine) + sum(lost) == EVENTS  # type: ignore[arg-type]
    assert mine[-1]["text"] == str(EVENTS - 1)


# More than the ring of a page holds; each 30 of them wait until the launcher has read those before.
SAVES = """
import glob, os, signal, sys, time, undaunted
def save(*_):
    for number in range(90):
        undaunted.event("shard", str(number))
        deadline = time.monotonic() + 30
        while number % 30 == 29 and time.monotonic() < deadline:
            (journal,) = glob.glob("run/journal-*")
            if f'"text":"{number}"' in open(journal).read():
                break
            time.sleep(0.05)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
undaunted.step(0)
print("works", flush=True)
while True:
    signal.pause()
"""


def test_what_a_rank_tells_while_it_is_being_stopped(tmp_path: Path) -> None:
    with launched(tmp_path, SAVES, *OPTIONS) as launcher:
        launcher.wait_for("works")
        launcher.process.send_signal(signal.SIGTERM)
        launcher.finish()
    shards = [event["text"] for event in launcher.events("rank_event") if event["name"] == "shard"]
    assert shards == [str(number) for number in range(90)]
    assert launcher.events("rank_events_lost") == []


def test_the_disk_hangs(tmp_path: Path) -> None:
    """A pipe that nobody reads takes 64 KiB, then whoever writes waits for ever."""
    path = str(tmp_path / "run" / "journal-n0.jsonl")
    with launched(
        tmp_path, script(f"os.unlink({path!r}); os.mkfifo({path!r}, 0o600)"), *OPTIONS
    ) as launcher:
        assert launcher.finish() == 0, launcher.text
    assert "all told" in launcher.text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_the_disk_is_full(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o700)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(run_dir), b"tmpfs", 0, b"size=64k,mode=700") != 0:
        pytest.skip(f"may not mount: {os.strerror(ctypes.get_errno())}")
    try:
        with launched(tmp_path, FILL + script(f"fill({str(run_dir)!r})"), *OPTIONS) as launcher:
            assert launcher.finish() == 0, launcher.text
        assert "all told" in launcher.text
    finally:
        assert libc.umount2(bytes(run_dir), 2) == 0
