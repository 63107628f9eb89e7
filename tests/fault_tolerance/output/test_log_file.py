import errno
import os
import stat
from pathlib import Path

import pytest

from undaunted.fault_tolerance.output.log_file import LogFile


@pytest.fixture
def log(tmp_path):
    log = LogFile(str(tmp_path / "new" / "log"))
    yield log
    log.close()


def content(log):
    return Path(log.path).read_bytes()


def test_files_and_directories_are_private(log, tmp_path):
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new" / "log").stat().st_mode) == 0o600


def test_pieces_are_appended(log):
    log.write([b"a", b"", memoryview(b"bcd")[:2]])
    log.write([b"e\n"])
    assert content(log) == b"abce\n"
    assert not log.blocked


def test_what_a_full_disk_refuses_comes_later_and_once(log, monkeypatch):
    writev = os.writev
    room = [3]

    def write(fd, pieces):
        if room[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = writev(fd, [b"".join(pieces)[: room[0]]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "writev", write)
    log.write([b"ab", b"cd", b"ef"])
    assert log.blocked
    assert log.error == "No space left on device"
    room[0] = 100
    log.flush()
    assert not log.blocked
    assert log.error == ""
    assert content(log) == b"abcdef"


def test_links_are_not_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        LogFile(str(tmp_path / "link"))
