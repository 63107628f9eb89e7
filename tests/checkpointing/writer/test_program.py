"""The program of the writer process: it ends when its trainer does."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpointing.async_ckpt import jobs
from tests.checkpointing.writer.processes import BLOCK, LONG_S
from tests.test_torch_absent import loaded_by
from undaunted.base import process
from undaunted.checkpointing.files import places
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.writer.job import Job, JobFile, NotWritten, WriterOptions, Written
from undaunted.checkpointing.writer.program import Bucket, do, explain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.checkpointing.files.blocks import WriteOptions


def test_path_words_and_remedy() -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/file")
    assert explain(error) == (
        "/data/file: No space left on device [ENOSPC]; free space there, keep fewer checkpoints, "
        "or save to another place"
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("words"), "words"),
        (OSError(errno.EINTR, "Interrupted"), "Interrupted [EINTR]"),
        (OSError(9999, "odd"), "odd"),
        (OSError(errno.EINTR, None), "Interrupted system call [EINTR]"),
        (FileExistsError(errno.EEXIST, "File exists", 3), "File exists [EEXIST]"),
    ],
)
def test_parts_that_are_missing(error: OSError, text: str) -> None:
    assert explain(error) == text


def test_a_burst_is_free_and_the_rest_waits() -> None:
    bucket = Bucket(100.0, 50.0, 0.0)
    assert bucket.take(50, 0.0) == 0
    assert bucket.take(100, 0.0) == 1.0
    assert bucket.take(100, 1.0) == 1.0


def test_a_pause_fills_no_more_than_a_burst() -> None:
    bucket = Bucket(100.0, 50.0, 0.0)
    assert bucket.take(60, 1000.0) == 0.1


def test_a_clock_that_stands_or_goes_back() -> None:
    bucket = Bucket(100.0, 0.0, 5.0)
    assert bucket.take(100, 4.0) == 1.0
    assert bucket.take(100, 5.0) == 2.0


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50), st.floats(1.0, 1e6))
def test_who_waits_as_told_keeps_the_rate(counts: list[int], rate: float) -> None:
    now, bucket = 0.0, Bucket(rate, 100.0, 0.0)
    for count in counts:
        now += bucket.take(count, now)
    assert now >= (sum(counts) - 100.0) / rate * 0.999999
    assert now <= sum(counts) / rate * 1.000001


MEMORY = memoryview(bytes(range(256)) * 1024)  # 256 KiB


@pytest.fixture
def file() -> Iterator[JobFile]:
    one = JobFile.create(job("/nowhere"))
    yield one
    one.close()


def job(target: Path | str, *files: Image) -> Job:
    options = WriterOptions(threads=2, bandwidth=1e12)
    return Job("/place", options, str(target), list(files), BLOCK)


def test_written(file: JobFile, tmp_path: Path) -> None:
    before = time.monotonic()
    found = do(job(tmp_path / "a", Image("x", 0, 3 * BLOCK), Image("y", 4096, 5)), MEMORY, file)
    assert isinstance(found, Written)
    assert (found.bytes, list(found.crc32)) == (3 * BLOCK + 5, ["x", "y"])
    assert (tmp_path / "a" / "y").read_bytes() == bytes(MEMORY[4096:4101])
    progress = file.look()
    assert progress.bytes == 3 * BLOCK + 5
    assert before <= progress.at_s <= time.monotonic()


def test_what_was_begun_is_removed(file: JobFile, tmp_path: Path) -> None:
    (tmp_path / "a" / "y").mkdir(parents=True)
    found = do(job(tmp_path / "a", Image("x", 0, 5), Image("y", 0, 5)), MEMORY, file)
    assert isinstance(found, NotWritten)
    assert found.message.startswith(f"{tmp_path}/a/y: Is a directory [EISDIR]")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["y"]


def test_given_up_before_it_began(file: JobFile, tmp_path: Path) -> None:
    file.give_up()
    found = do(job(tmp_path / "a", Image("x", 0, 5)), MEMORY, file)
    assert found == NotWritten(f"{tmp_path}/a: cancelled")
    assert not (tmp_path / "a").exists()


def test_objects_go_through_their_storage(file: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    class Objects:
        def write(self, target, image, memory, wrote) -> str:
            wrote(image.size)
            return f"{target} {image.name} {len(memory)}"

    opened: list[tuple[str, int]] = []

    def open_storage(url: str, options: WriteOptions) -> Objects:
        opened.append((url, options.threads))
        return Objects()

    monkeypatch.setattr(places, "open_storage", open_storage)
    found = do(job("s3://bucket/a", Image("x", 0, 5)), MEMORY, file)
    assert isinstance(found, Written)
    assert found.crc32 == {"x": f"s3://bucket/a x {len(MEMORY)}"}
    assert opened == [("/place", 2)]


pytestmark = pytest.mark.e2e

# A trainer: has something written, which does not end, and waits to be killed.
TRAINER = """
import json, os, signal, sys, threading
sys.path.insert(0, sys.argv[3])
from jobs import writer_pid
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.writer.job import WriterOptions
from undaunted.checkpointing.writer.process import Writer

folder, how, _ = sys.argv[1:]
lease = Pool(1, "arena", "wait").lease(1 << 20, 60)
writer = Writer(folder, WriterOptions(bandwidth=1.0))
job = (lease, folder + "/a", [Image("file", 0, 1 << 20)], 60, 65536)
threading.Thread(target=writer.write, args=job, daemon=True).start()
pid = writer_pid()
child = 0
if how == "forked":
    child = os.fork()
    if not child:
        signal.pause()
if how != "starts":
    while not writer.bytes_written():
        pass
if how == "stopped":
    os.kill(pid, signal.SIGSTOP)
print(json.dumps([pid, child]), flush=True)
if how == "exits":
    os._exit(0)
signal.pause()
"""


@pytest.mark.parametrize("how", ["starts", "killed", "exits", "stopped", "forked"])
def test_no_orphan_is_left(tmp_path: Path, how: str) -> None:
    """Also where it is stopped, and where a fork of the trainer lives on."""
    helpers = str(Path(jobs.__file__).parent)
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(tmp_path), how, helpers], stdout=subprocess.PIPE
    )
    assert trainer.stdout is not None
    with trainer, trainer.stdout:
        pid, child = json.loads(trainer.stdout.readline())
        pidfd = process.open_pidfd(pid)
        try:
            trainer.kill()
            assert pidfd is None or process.wait_pidfd(pidfd, LONG_S)
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
