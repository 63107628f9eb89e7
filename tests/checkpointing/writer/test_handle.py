"""The writer process as the trainer sees it: it writes, fails, dies and stops."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.writer.processes import (
    BLOCK,
    LONG_S,
    Watch,
    shared,
    takes_at_most,
    whole,
    writer,
)
from tests.leaks import count_fds
from undaunted.base import process
from undaunted.checkpointing.errors import SaveError, WriterError
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.writer.handle import WriterProcess
from undaunted.checkpointing.writer.options import WriterOptions

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

SLOW = 1.0  # bytes per second: what is begun does not end


def test_files_are_written_and_their_checksums_told(tmp_path: Path) -> None:
    target = tmp_path / "root" / ".step-1"
    with shared() as memory, writer(tmp_path) as handle:
        handle.share(0, memory.fd, memory.size)
        files = [Image("a", 0, 3 * BLOCK + 5), Image("b", BLOCK, 10), Image("empty", 0, 0)]
        written = handle.write(str(target), 0, files, LONG_S, BLOCK)
        assert handle.bytes_written() == written.bytes == 3 * BLOCK + 15
    content = memory.content[: 3 * BLOCK + 5]
    assert (target / "a").read_bytes() == content
    assert (target / "b").read_bytes() == memory.content[BLOCK : BLOCK + 10]
    assert (target / "empty").read_bytes() == b""
    blocks = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)]
    assert written.crc32["a"] == "".join(f"{zlib.crc32(block):08x}" for block in blocks)
    assert written.crc32["empty"] == ""
    assert written.seconds >= 0
    assert {path.stat().st_mode & 0o777 for path in (target, target.parent)} == {0o700}


def test_arenas_are_replaced(tmp_path: Path) -> None:
    with shared() as one, shared() as two, writer(tmp_path) as handle:
        handle.share(0, one.fd, one.size)
        handle.share(1, two.fd, two.size)
        handle.write(str(tmp_path / "a"), 0, whole(one), LONG_S)
        handle.write(str(tmp_path / "b"), 1, whole(two), LONG_S)
        handle.share(0, two.fd, two.size)
        handle.write(str(tmp_path / "c"), 0, whole(two), LONG_S)
    for folder, memory in (("a", one), ("b", two), ("c", two)):
        assert (tmp_path / folder / "file").read_bytes() == memory.content


def test_many_files_at_once_do_not_block_who_hands_them_over(tmp_path: Path) -> None:
    with shared() as memory, writer(tmp_path) as handle:
        os.kill(handle.pid, signal.SIGSTOP)
        handle.share(0, memory.fd, memory.size)
        files = [Image("x" * 50_000 + str(n), 0, 0) for n in range(20)]
        with pytest.raises(SaveError, match=r"not written within 0\.01 s"):
            handle.write(str(tmp_path / "a"), 0, files, 0.01)  # more than the socket takes
        os.kill(handle.pid, signal.SIGCONT)
        with pytest.raises(SaveError, match="File name too long") as caught:
            handle.write(str(tmp_path / "a"), 0, files, LONG_S)
        assert caught.value.errno == errno.ENAMETOOLONG


def test_an_error_of_the_system_says_path_errno_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with shared() as memory, writer(tmp_path) as handle:
        handle.share(0, memory.fd, memory.size)
        with pytest.raises(
            SaveError, match=r"/below: Not a directory \[ENOTDIR\]; a file"
        ) as caught:
            handle.write(str(tmp_path / "file" / "below"), 0, whole(memory), LONG_S)
        assert caught.value.errno == errno.ENOTDIR
        assert not isinstance(caught.value, WriterError)
        handle.write(str(tmp_path / "good"), 0, whole(memory), LONG_S)


def test_missing_space_leaves_nothing_and_the_next_save_works(tmp_path: Path) -> None:
    with shared(8) as memory, writer(tmp_path) as handle:
        handle.share(0, memory.fd, memory.size)
        limit = 4 * BLOCK
        before = resource.prlimit(handle.pid, resource.RLIMIT_FSIZE, (limit, limit))
        files = [Image("small", 0, BLOCK), Image("large", 0, memory.size)]
        with pytest.raises(SaveError, match=rf"File too large \({memory.size} bytes are needed\)"):
            handle.write(str(tmp_path / "a"), 0, files, LONG_S)
        assert list((tmp_path / "a").iterdir()) == []
        assert before
        handle.write(str(tmp_path / "b"), 0, files[:1], LONG_S)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (Image("file", 0, 5 * BLOCK), "does not lie in its arena"),
        (Image("../file", 0, 1), "no name of a file"),
        (Image("..", 0, 1), "no name of a file"),
        (Image("file", -4096, 1), "does not lie"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, image: Image, words: str) -> None:
    with shared() as memory, writer(tmp_path) as handle:
        handle.share(0, memory.fd, memory.size)
        with pytest.raises(SaveError, match=words):
            handle.write(str(tmp_path / "a"), 0, [image], LONG_S)
        with pytest.raises(SaveError, match="no arena in slot 1"):
            handle.write(str(tmp_path / "a"), 1, [image], LONG_S)


@pytest.mark.parametrize("times", [0, 2])
def test_an_arena_of_another_size_than_it_is_said_to_be(tmp_path: Path, times: int) -> None:
    with shared() as memory, writer(tmp_path) as handle:
        handle.share(0, memory.fd, times * memory.size)
        with pytest.raises(SaveError, match="does not lie in its arena of 0 bytes"):
            handle.write(str(tmp_path / "a"), 0, whole(memory), LONG_S)


def test_a_deadline_cancels_the_job_and_the_writer_goes_on(tmp_path: Path) -> None:
    with shared() as memory, writer(tmp_path, bandwidth=SLOW) as handle:
        handle.share(0, memory.fd, memory.size)
        with pytest.raises(SaveError, match=r"/a: not written within 0\.01 s") as caught:
            handle.write(str(tmp_path / "a"), 0, whole(memory), 0.01, BLOCK)
        assert caught.value.errno == errno.ETIMEDOUT
        handle.write(str(tmp_path / "b"), 0, [Image("f", 0, 1)], LONG_S, BLOCK)
        assert not list(tmp_path.glob("a/*"))


# --- it dies --------------------------------------------------------------------------------------


def test_killed_at_its_start(tmp_path: Path) -> None:
    with shared() as memory, writer(tmp_path) as handle:
        os.kill(handle.pid, signal.SIGKILL)
        handle.share(0, memory.fd, memory.size)
        expected = rf"/a: the writer process \(pid {handle.pid}\) was killed \(SIGKILL\); see dmesg"
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match=expected):
            handle.write(str(tmp_path / "a"), 0, whole(memory), LONG_S)
        with pytest.raises(WriterError, match="was killed"):
            handle.write(str(tmp_path / "b"), 0, whole(memory), LONG_S)


def test_killed_in_mid_write(tmp_path: Path) -> None:
    with (
        shared() as memory,
        writer(tmp_path, bandwidth=SLOW) as handle,
        ThreadPoolExecutor(1) as thread,
    ):
        handle.share(0, memory.fd, memory.size)
        watch = Watch(tmp_path / "a")
        job = thread.submit(handle.write, str(tmp_path / "a"), 0, whole(memory), LONG_S, BLOCK)
        watch.wait()
        os.kill(handle.pid, signal.SIGSEGV)
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match="was ended by SIGSEGV"):
            job.result()


def test_what_it_said_before_it_died_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared() as memory, writer(tmp_path) as handle:
        listen = handle._listen

        def too_late(timeout_s: float) -> None:
            assert process.wait_readable(handle._connection.fileno(), LONG_S)
            os.kill(handle.pid, signal.SIGKILL)
            assert process.wait_pidfd(handle._child.pidfd, LONG_S)
            listen(timeout_s)

        monkeypatch.setattr(handle, "_listen", too_late)
        handle.share(0, memory.fd, memory.size)
        written = handle.write(str(tmp_path / "a"), 0, whole(memory), LONG_S)
        assert written.bytes == memory.size


def test_a_writer_that_talks_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with writer(tmp_path) as handle:
        handle._connection.close()
        ours.setblocking(False)
        handle._connection._sock = ours
        theirs.send(b"\0\0\0\1\xc1")
        os.kill(handle.pid, signal.SIGSTOP)
        with pytest.raises(WriterError, match=r"the writer process \(pid"):
            handle.write(str(tmp_path / "a"), 0, [], LONG_S)
    theirs.close()


# --- it stops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["at its start", "in mid-write", "before the next job"])
def test_stopped(tmp_path: Path, when: str) -> None:
    slow = SLOW if when == "in mid-write" else None
    with (
        shared() as memory,
        writer(tmp_path, nice=0, bandwidth=slow, stall_timeout_s=3.0) as handle,
        ThreadPoolExecutor(1) as thread,
    ):
        if when == "at its start":
            os.kill(handle.pid, signal.SIGSTOP)
        handle.share(0, memory.fd, memory.size)
        if when == "before the next job":
            handle.write(str(tmp_path / "a"), 0, whole(memory), LONG_S)
            os.kill(handle.pid, signal.SIGSTOP)
        watch = Watch(tmp_path / "b")
        job = thread.submit(handle.write, str(tmp_path / "b"), 0, whole(memory), LONG_S, BLOCK)
        if when == "in mid-write":
            watch.wait()
            os.kill(handle.pid, signal.SIGSTOP)
        else:
            watch.inotify.close()
        expected = r"has made no progress for \d+ s .*was killed; it is stopped \(SIGSTOP\)"
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match=expected):
            job.result()


def test_a_file_system_that_hangs(tmp_path: Path) -> None:
    """The first call that concerns the file does not return: nobody reads the pipe."""
    (tmp_path / "hangs").mkdir()
    os.mkfifo(tmp_path / "hangs" / "file")
    with shared() as memory, writer(tmp_path, nice=0, stall_timeout_s=3.0) as handle:
        handle.share(0, memory.fd, memory.size)
        handle.write(str(tmp_path / "before"), 0, whole(memory), LONG_S)
        with pytest.raises(SaveError, match=r"not written within 0\.5 s") as caught:
            # More than it takes to begin.
            handle.write(str(tmp_path / "hangs"), 0, whole(memory), 0.5)
        assert not isinstance(caught.value, WriterError)
        expected = r"has made no progress .*; see whether the file system hangs"
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match=expected):
            handle.write(str(tmp_path / "next"), 0, whole(memory), LONG_S)


def test_who_waits_for_the_rate_limit_does_not_stand_still(tmp_path: Path) -> None:
    with (
        shared(3) as memory,
        writer(tmp_path, nice=0, bandwidth=BLOCK / 3, stall_timeout_s=2.0, threads=1) as handle,
    ):
        handle.share(0, memory.fd, memory.size)
        written = handle.write(str(tmp_path / "a"), 0, whole(memory), LONG_S, BLOCK)
        assert written.seconds > 5.0


# --- it is ended ----------------------------------------------------------------------------------


def test_close_waits_for_the_job(tmp_path: Path) -> None:
    with shared() as memory, writer(tmp_path) as handle, ThreadPoolExecutor(1) as thread:
        handle.share(0, memory.fd, memory.size)
        watch = Watch(tmp_path / "a")
        job = thread.submit(handle.write, str(tmp_path / "a"), 0, whole(memory), LONG_S)
        watch.wait()
        handle.close(LONG_S)
        assert job.result().bytes == memory.size
        handle.close(LONG_S)
        handle.abort()
        with pytest.raises(WriterError, match="was closed"):
            handle.write(str(tmp_path / "b"), 0, whole(memory), LONG_S)


def test_close_of_a_stopped_writer(tmp_path: Path) -> None:
    handle = WriterProcess(str(tmp_path))
    os.kill(handle.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(handle.write, str(tmp_path / "a"), 0, [], LONG_S)
        with takes_at_most(LONG_S / 2):
            handle.close(0.2)
        with pytest.raises(WriterError, match="was closed"):
            job.result()


def test_abort_wakes_who_waits(tmp_path: Path) -> None:
    with (
        shared() as memory,
        writer(tmp_path, bandwidth=SLOW) as handle,
        ThreadPoolExecutor(1) as thread,
    ):
        handle.share(0, memory.fd, memory.size)
        watch = Watch(tmp_path / "a")
        job = thread.submit(handle.write, str(tmp_path / "a"), 0, whole(memory), LONG_S, BLOCK)
        watch.wait()
        handle.abort()
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match="was aborted"):
            job.result()
        assert handle.bytes_written() == 0


def test_a_handle_that_nobody_keeps_ends_its_process(tmp_path: Path) -> None:
    handle = WriterProcess(str(tmp_path))
    pidfd = process.open_pidfd(handle.pid)
    assert pidfd is not None
    del handle
    assert process.wait_pidfd(pidfd, LONG_S)
    os.close(pidfd)


def test_a_fork_of_the_trainer_leaves_the_writer_alone(tmp_path: Path) -> None:
    with shared() as memory, writer(tmp_path) as handle:
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                handle.close(LONG_S)
                handle.abort()
                handle.__del__()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        handle.share(0, memory.fd, memory.size)
        handle.write(str(tmp_path / "a"), 0, whole(memory), LONG_S)


def test_it_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/missing/python")
    with pytest.raises(WriterError, match=r"cannot be started: .*/missing/python"):
        WriterProcess(str(tmp_path))


def test_it_ends_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with writer(tmp_path) as handle, pytest.raises(WriterError, match="ended with exit code 1"):
        handle.write(str(tmp_path / "a"), 0, [], LONG_S)


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads=0"):
        WriterProcess(str(tmp_path), WriterOptions(threads=0))


def test_the_hand_over_does_not_wait_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = tmp_path / "never"  # a Python that does not begin
    never.write_text("#!/bin/sh\nexec sleep 600\n")
    never.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(never))
    with (
        writer(tmp_path) as handle,
        takes_at_most(LONG_S / 2),
        pytest.raises(SaveError, match="not written within"),
    ):
        handle.write(str(tmp_path / "a"), 0, [], 0.01)


FORGETFUL = """
import contextlib, sys
from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.writer.handle import WriterProcess
kept = WriterProcess(sys.argv[1])
with contextlib.suppress(SaveError):  # there is no arena
    kept.write(sys.argv[1] + "/a", 0, [], 60)
"""


def test_a_trainer_that_ends_without_closing_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""


def test_nothing_is_left_after_many_deaths(tmp_path: Path) -> None:
    before = count_fds()
    for number in range(4):
        with writer(tmp_path) as handle:
            if number % 2:
                os.kill(handle.pid, signal.SIGKILL)
            with pytest.raises(SaveError):
                handle.write(str(tmp_path / "a"), 0, [], LONG_S)
    assert count_fds() <= before, "what earlier tests have left may have gone meanwhile"
