import os
import time

import pytest

from undaunted.fault_tolerance.output import console as console_module
from undaunted.fault_tolerance.output.console import Console


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


class Waits:
    """Stands for waiting; does what the test says while the console waits."""

    def __init__(self, *actions):
        self.actions = list(actions)

    def __call__(self, fd, seconds):
        assert seconds > 0
        if self.actions:
            self.actions.pop(0)()


def fill(fd):
    os.set_blocking(fd, False)
    try:
        while True:
            os.write(fd, bytes(4096))
    except BlockingIOError:
        pass
    os.set_blocking(fd, True)


def test_regular_file(tmp_path):
    with (tmp_path / "console").open("wb") as file:
        console = Console(file.fileno(), Waits())
        console.write(b"one\n" * 10_000)
    assert (tmp_path / "console").read_bytes() == b"one\n" * 10_000


def test_pieces_end_with_lines_so_that_writers_do_not_mix(pipe):
    read_fd, write_fd = pipe
    line = b"x" * 99 + b"\n"
    Console(write_fd, Waits()).write(line * 100)
    assert os.read(read_fd, 4096) + os.read(read_fd, 1 << 16) == line * 100


def test_waits_for_a_slow_reader(pipe):
    read_fd, write_fd = pipe
    fill(write_fd)
    console = Console(write_fd, Waits(lambda: None, lambda: os.read(read_fd, 1 << 20)))
    console.write(b"late\n")
    assert os.read(read_fd, 1 << 20) == b"late\n"
    assert console.dropped_lines == 0


def test_stall_and_return(pipe, monkeypatch):
    read_fd, write_fd = pipe
    monkeypatch.setattr(console_module, "STALL_S", 0)
    fill(write_fd)
    console = Console(write_fd, Waits())
    console.write(b"a\nb\n")
    console.write(b"c\n")
    assert console.stalled_fd == write_fd
    assert console.dropped_lines == 3
    os.read(read_fd, 1 << 20)
    console.write(b"d\n")
    assert console.stalled_fd is None
    notice, last = os.read(read_fd, 1 << 20).splitlines()
    assert b"3 lines were not shown" in notice
    assert last == b"d"


def test_after_the_deadline_nothing_is_written(pipe):
    read_fd, write_fd = pipe
    console = Console(write_fd, Waits())
    console.deadline = time.monotonic()
    console.write(b"a\nb\n")
    assert console.dropped_lines == 2
    console.resume()
    assert b"2 lines were not shown" in os.read(read_fd, 1 << 20)


def test_deadline_that_comes_while_waiting_ends_the_wait(pipe):
    _, write_fd = pipe
    fill(write_fd)

    def set_deadline():
        console.deadline = time.monotonic()

    console = Console(write_fd, Waits(set_deadline))
    console.write(b"a\n")
    assert console.dropped_lines == 1


@pytest.mark.parametrize("how", ["reader closed", "descriptor closed"])
def test_reader_that_is_gone_for_good(how):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    if how == "descriptor closed":
        os.close(write_fd)
    console = Console(write_fd, Waits())
    console.write(b"a\nb\n")
    console.write(b"c\n")
    console.resume()
    assert console.dropped_lines == 3
    assert console.stalled_fd is None
    if how == "reader closed":
        os.close(write_fd)
