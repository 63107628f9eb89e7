"""The writer process as the trainer sees it: it writes, fails, dies and stops."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.async_ckpt.jobs import writer_pid
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
from undaunted.checkpointing.writer.job import WriterOptions
from undaunted.checkpointing.writer.process import Child, Writer, _environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.checkpointing.writer.processes import Shared
    from undaunted.checkpointing.writer.job import Written

pytestmark = pytest.mark.e2e

SLOW = 1.0  # bytes per second: what is begun does not end


@pytest.fixture
def memory() -> Iterator[Shared]:
    with shared() as one:
        yield one


@contextlib.contextmanager
def writing(one: Writer, memory: Shared, target: Path) -> Iterator[object]:
    """A write in another thread, which has begun."""
    watch = Watch(target)
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(one.write, memory.lease, str(target), whole(memory), LONG_S, BLOCK)
        watch.wait()
        yield job
        one.abort()


def write(one: Writer, memory: Shared, target: Path, files: list[Image] | None = None) -> Written:
    return one.write(memory.lease, str(target), files or whole(memory), LONG_S, BLOCK)


def test_files_are_written_and_their_checksums_told(tmp_path: Path, memory: Shared) -> None:
    target = tmp_path / "root" / ".step-1"
    files = [Image("a", 0, 3 * BLOCK + 5), Image("b", BLOCK, 10), Image("empty", 0, 0)]
    with writer(tmp_path) as one:
        written = write(one, memory, target, files)
        assert one.bytes_written() == 0, "nothing is being written"
    content = memory.content[: 3 * BLOCK + 5]
    assert (target / "a").read_bytes() == content
    assert (target / "b").read_bytes() == memory.content[BLOCK : BLOCK + 10]
    assert (target / "empty").read_bytes() == b""
    blocks = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)]
    assert written.crc32["a"] == "".join(f"{zlib.crc32(block):08x}" for block in blocks)
    assert written.crc32["empty"] == ""
    assert written.bytes == 3 * BLOCK + 15
    assert written.seconds >= 0
    assert written.cpu_s > 0
    assert {path.stat().st_mode & 0o777 for path in (target, target.parent)} == {0o700}


def test_arenas_change_from_write_to_write(tmp_path: Path, memory: Shared) -> None:
    with shared() as other, writer(tmp_path) as one:
        for folder, each in (("a", memory), ("b", other), ("c", memory)):
            write(one, each, tmp_path / folder)
            assert (tmp_path / folder / "file").read_bytes() == each.content


def test_long_names_of_many_files(tmp_path: Path, memory: Shared) -> None:
    """More than a pipe or a socket takes at once."""
    files = [Image("x" * 50_000 + str(n), 0, 0) for n in range(20)]
    with writer(tmp_path) as one, pytest.raises(SaveError) as caught:
        write(one, memory, tmp_path / "a", files)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_an_error_of_the_system_says_path_errno_and_remedy(tmp_path: Path, memory: Shared) -> None:
    (tmp_path / "file").write_text("in the way")
    with writer(tmp_path) as one:
        with pytest.raises(SaveError, match=r"/below: .*\[ENOTDIR\]") as caught:
            write(one, memory, tmp_path / "file" / "below")
        assert caught.value.errno == errno.ENOTDIR
        assert not isinstance(caught.value, WriterError)
        write(one, memory, tmp_path / "good")


def test_missing_space_leaves_nothing_and_the_next_save_works(tmp_path: Path) -> None:
    files = [Image("small", 0, BLOCK), Image("large", 0, 8 * BLOCK)]
    with shared(8) as memory, writer(tmp_path) as one:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * BLOCK, before[1]))
        try:
            with pytest.raises(SaveError, match=rf"\({memory.size} bytes are needed\)"):
                write(one, memory, tmp_path / "a", files)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list((tmp_path / "a").iterdir()) == []
        write(one, memory, tmp_path / "b", files)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (Image("file", 0, 5 * BLOCK), "does not lie in its arena"),
        (Image("../file", 0, 1), "no name of a file"),
        (Image("..", 0, 1), "no name of a file"),
        (Image("file", -4096, 1), "does not lie"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, memory: Shared, image: Image, words: str) -> None:
    with writer(tmp_path) as one, pytest.raises(SaveError, match=words):
        write(one, memory, tmp_path / "a", [image])


def test_after_a_deadline_nothing_is_left_and_the_writer_goes_on(
    tmp_path: Path, memory: Shared
) -> None:
    with writer(tmp_path, bandwidth=SLOW) as one:
        with pytest.raises(SaveError, match=r"/a: not written within 0\.5 s") as caught:
            one.write(memory.lease, str(tmp_path / "a"), whole(memory), 0.5, BLOCK)
        assert caught.value.errno == errno.ETIMEDOUT
        assert not list(tmp_path.glob("a/*"))
        write(one, memory, tmp_path / "b", [Image("f", 0, 1)])


# --- it dies --------------------------------------------------------------------------------------


def test_killed_at_its_start(tmp_path: Path, memory: Shared) -> None:
    with writer(tmp_path, bandwidth=SLOW) as one, ThreadPoolExecutor(1) as thread:
        job = thread.submit(write, one, memory, tmp_path / "a")
        pid = writer_pid()
        os.kill(pid, signal.SIGKILL)
        expected = rf"/a: the writer process \(pid {pid}\) .*SIGKILL"
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match=expected):
            job.result()
        write(one, memory, tmp_path / "b", [Image("f", 0, 1)])


def test_killed_in_mid_write(tmp_path: Path, memory: Shared) -> None:
    with (
        writer(tmp_path, bandwidth=SLOW) as one,
        writing(one, memory, tmp_path / "a") as job,
    ):
        os.kill(writer_pid(), signal.SIGSEGV)
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match="SIGSEGV"):
            job.result()


def test_what_it_answered_before_it_was_killed_counts(
    tmp_path: Path, memory: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Child.ended

    def too_late(child: Child, timeout_s: float) -> bool:
        while child.file.answered() is None:
            pass
        child.kill()
        return ended(child, LONG_S)

    monkeypatch.setattr(Child, "ended", too_late)
    with writer(tmp_path) as one:
        assert write(one, memory, tmp_path / "a").bytes == memory.size


def test_half_an_answer_is_none(
    tmp_path: Path, memory: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = Child.ended

    def broken(child: Child, timeout_s: float) -> bool:
        over = release(child, timeout_s)
        os.ftruncate(child.file.fd, os.fstat(child.file.fd).st_size - 3)
        return over

    monkeypatch.setattr(Child, "ended", broken)
    with writer(tmp_path) as one, pytest.raises(WriterError, match=r"the writer process \(pid"):
        write(one, memory, tmp_path / "a")


# --- it stops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["at its start", "in mid-write"])
def test_stopped(tmp_path: Path, memory: Shared, when: str) -> None:
    with (
        writer(tmp_path, nice=0, bandwidth=SLOW, stall_timeout_s=3.0) as one,
        ThreadPoolExecutor(1) as thread,
    ):
        watch = Watch(tmp_path / "b")
        job = thread.submit(write, one, memory, tmp_path / "b")
        if when == "in mid-write":
            watch.wait()
        else:
            watch.inotify.close()
        os.kill(writer_pid(), signal.SIGSTOP)
        expected = r"has made no progress for \d+ s .*was killed; it is stopped \(SIGSTOP\)"
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match=expected):
            job.result()


def test_a_file_system_that_hangs(tmp_path: Path, memory: Shared) -> None:
    """The first call that concerns the file does not return: nobody reads the pipe."""
    (tmp_path / "hangs").mkdir()
    os.mkfifo(tmp_path / "hangs" / "file")
    with writer(tmp_path, nice=0, stall_timeout_s=3.0) as one:
        with pytest.raises(SaveError, match=r"not written within 0\.5 s") as caught:
            one.write(memory.lease, str(tmp_path / "hangs"), whole(memory), 0.5)
        assert not isinstance(caught.value, WriterError)
        expected = r"has made no progress .*; see whether the file system hangs"
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match=expected):
            write(one, memory, tmp_path / "hangs")
        write(one, memory, tmp_path / "next")


def test_who_waits_for_the_rate_limit_does_not_stand_still(tmp_path: Path) -> None:
    options = {"nice": 0, "bandwidth": BLOCK / 3, "stall_timeout_s": 2.0, "threads": 1}
    with shared(3) as memory, writer(tmp_path, **options) as one:
        assert write(one, memory, tmp_path / "a").seconds > 5.0


# --- it is ended ----------------------------------------------------------------------------------


def test_close_waits_for_the_job(tmp_path: Path, memory: Shared) -> None:
    with writer(tmp_path) as one, ThreadPoolExecutor(1) as thread:
        watch = Watch(tmp_path / "a")
        job = thread.submit(write, one, memory, tmp_path / "a")
        watch.wait()
        one.close(LONG_S)
        assert job.result().bytes == memory.size
        one.close(LONG_S)


def test_close_of_a_stopped_writer(tmp_path: Path, memory: Shared) -> None:
    with writer(tmp_path, bandwidth=SLOW) as one, writing(one, memory, tmp_path / "a") as job:
        os.kill(writer_pid(), signal.SIGSTOP)
        with takes_at_most(LONG_S / 2):
            one.close(0.2)
        with pytest.raises(WriterError, match="was closed"):
            job.result()


def test_abort_wakes_who_waits(tmp_path: Path, memory: Shared) -> None:
    with writer(tmp_path, bandwidth=SLOW) as one, writing(one, memory, tmp_path / "a") as job:
        one.abort()
        with takes_at_most(LONG_S / 2), pytest.raises(WriterError, match="was aborted"):
            job.result()
        assert one.bytes_written() == 0


@pytest.mark.parametrize("how", ["abort", "close"])
def test_nothing_is_started_after_the_end(tmp_path: Path, memory: Shared, how: str) -> None:
    with writer(tmp_path) as one:
        one.abort() if how == "abort" else one.close(LONG_S)
        with pytest.raises(SaveError, match="ended"):
            write(one, memory, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_thread_that_is_interrupted_ends_what_it_waits_for(
    tmp_path: Path, memory: Shared
) -> None:
    class Interrupted(BaseException):
        """Of a restart inside of the process."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with writer(tmp_path, bandwidth=SLOW) as one:
            watch = Watch(tmp_path / "a")
            pids: list[int] = []

            def after() -> None:
                watch.wait()
                pids.append(writer_pid())
                os.kill(os.getpid(), signal.SIGUSR1)

            thread = threading.Thread(target=after)
            thread.start()
            with pytest.raises(Interrupted):
                write(one, memory, tmp_path / "a")
            thread.join(LONG_S)
            assert process.state(pids[0]) in process.ENDED
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_fork_of_the_trainer_leaves_the_writer_alone(tmp_path: Path, memory: Shared) -> None:
    with writer(tmp_path, bandwidth=BLOCK) as one, ThreadPoolExecutor(1) as thread:
        watch = Watch(tmp_path / "a")
        job = thread.submit(write, one, memory, tmp_path / "a")
        watch.wait()
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                one.close(LONG_S)
                one.abort()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert job.result().bytes == memory.size


def test_it_cannot_be_started(
    tmp_path: Path, memory: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/missing/python")
    with writer(tmp_path) as one, pytest.raises(WriterError, match="/missing/python"):
        write(one, memory, tmp_path / "a")


def test_it_ends_at_its_start(
    tmp_path: Path, memory: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with writer(tmp_path) as one, pytest.raises(WriterError, match="exit code 1"):
        write(one, memory, tmp_path / "a")


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads=0"):
        Writer(str(tmp_path), WriterOptions(threads=0))


def test_one_that_cannot_be_waited_for_yet_is_waited_for_later(
    tmp_path: Path, memory: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs holds a process that was killed."""
    monkeypatch.setattr(Child, "kill", lambda _: None)
    with writer(tmp_path, bandwidth=SLOW) as one:
        monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
        with pytest.raises(SaveError):
            one.write(memory.lease, str(tmp_path / "a"), whole(memory), 0.01, BLOCK)
        monkeypatch.undo()
        (pid,) = Child.left
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        write(one, memory, tmp_path / "b", [Image("f", 0, 1)])
    assert Child.left == []


def test_nothing_is_left_after_many_deaths(tmp_path: Path, memory: Shared) -> None:
    before = count_fds()
    with writer(tmp_path, bandwidth=SLOW) as one, ThreadPoolExecutor(1) as thread:
        for number in range(4):
            files = [Image("..", 0, 1)] if number % 2 else whole(memory)
            job = thread.submit(write, one, memory, tmp_path / "a", files)
            if not number % 2:
                os.kill(writer_pid(), signal.SIGKILL)
            with pytest.raises(SaveError):
                job.result()
    assert count_fds() <= before, "what earlier tests have left may have gone meanwhile"


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setattr(sys, "path", ["", "/a"])
    environ = _environment()
    first, ours, msgspecs = environ["PYTHONPATH"].split(":")
    assert first == "/a", "not the current directory"
    assert (Path(ours) / "undaunted").is_dir()
    assert (Path(msgspecs) / "msgspec").is_dir()
    assert "PYTHONINSPECT" not in environ


FORGETFUL = """
import sys, threading, time
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.writer.job import WriterOptions
from undaunted.checkpointing.writer.process import Writer
lease = Pool(1, "test", "wait").lease(1 << 20, 60)
kept = Writer(sys.argv[1], WriterOptions(bandwidth=1.0))
job = (lease, sys.argv[1] + "/a", [Image("file", 0, 1 << 20)], 60)
threading.Thread(target=kept.write, args=job, daemon=True).start()
while not kept.bytes_written():
    time.sleep(0.01)
"""


def test_a_trainer_that_ends_without_closing_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=LONG_S,
    )
    assert done.stdout + done.stderr == ""
