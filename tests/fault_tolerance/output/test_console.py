import os

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
            return self.actions.pop(0)() is not False
        return True


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
        console.write([b"one\n" * 10_000])
    assert (tmp_path / "console").read_bytes() == b"one\n" * 10_000


def test_pieces_end_with_lines_so_that_writers_do_not_mix(pipe):
    read_fd, write_fd = pipe
    line = b"x" * 99 + b"\n"
    Console(write_fd, Waits()).write([line * 100])
    assert os.read(read_fd, 4096) + os.read(read_fd, 1 << 16) == line * 100


def test_waits_for_a_slow_reader(pipe):
    read_fd, write_fd = pipe
    fill(write_fd)
    console = Console(write_fd, Waits(lambda: None, lambda: os.read(read_fd, 1 << 20)))
    console.write([b"late\n"])
    assert os.read(read_fd, 1 << 20) == b"late\n"
    assert console.missing_lines == 0


def test_stall_and_return(pipe, monkeypatch):
    read_fd, write_fd = pipe
    monkeypatch.setattr(console_module, "STALL_S", 0)
    fill(write_fd)
    console = Console(write_fd, Waits())
    console.write([b"a\nb\n"])
    console.write([b"c\n"])
    assert console.awaited == [write_fd]
    assert console.missing_lines == 3
    os.read(read_fd, 1 << 20)
    console.write([b"d\n"])
    assert console.awaited == []
    notice, last = os.read(read_fd, 1 << 20).splitlines()
    assert b"3 lines were not shown" in notice
    assert last == b"d"


def test_a_wait_that_is_over_drops_lines_at_once(pipe):
    read_fd, write_fd = pipe
    fill(write_fd)
    console = Console(write_fd, Waits(lambda: False), kept="see /somewhere")
    console.write([b"a\nb\n"])
    assert console.missing_lines == 2
    os.read(read_fd, 1 << 20)
    console.flush()
    notice = os.read(read_fd, 1 << 20)
    assert b"2 lines were not shown" in notice
    assert b"/somewhere" in notice


@pytest.mark.parametrize("how", ["reader closed", "descriptor closed"])
def test_reader_that_is_gone_for_good(how):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    if how == "descriptor closed":
        os.close(write_fd)
    console = Console(write_fd, Waits())
    console.write([b"a\nb\n"])
    console.write([b"c\n"])
    console.flush()
    assert console.missing_lines == 3
    assert console.awaited == []
    if how == "reader closed":
        os.close(write_fd)
