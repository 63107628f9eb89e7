import errno
import logging
import os

import pytest

from nvidia_resiliency_ext.shared_utils._messages import files as message_files
from nvidia_resiliency_ext.shared_utils._messages.files import (
    FILE_NAME,
    LONGEST_MESSAGE_BYTES,
    Appender,
    MessageFiles,
    check_directory,
    encode,
)


def say(handler, text):
    handler.handle(logging.LogRecord("nvrx", logging.INFO, "file.py", 1, text, None, None))


@pytest.fixture
def files(tmp_path):
    handler = MessageFiles(str(tmp_path), "rank_3", max_bytes=100, max_files=2)
    yield handler
    handler.close()


def content(directory):
    return [path.read_text() for path in sorted(directory.iterdir())]


def test_a_message_is_in_the_file_at_once(tmp_path, files):
    assert list(tmp_path.iterdir()) == []
    say(files, "one\ntwo\n")
    (path,) = tmp_path.iterdir()
    assert FILE_NAME.fullmatch(path.name)
    assert path.name.startswith(f"rank_3_{os.getpid()}.msg.")
    assert path.read_text() == "one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_large_files_are_followed_up_and_the_oldest_removed(tmp_path, files):
    for number in range(7):
        say(files, f"{number} " + "x" * 60)
    assert [text[0] for text in content(tmp_path)] == ["4", "6"]
    assert content(tmp_path)[0].count("\n") == 2


def test_a_forked_child_has_files_of_its_own(tmp_path, files):
    say(files, "parent")
    pid = os.fork()
    if not pid:
        say(files, "child")
        os._exit(0)
    os.waitpid(pid, 0)
    say(files, "parent again")
    assert sorted(content(tmp_path)) == ["child\n", "parent\nparent again\n"]


def test_a_full_disk_loses_and_never_raises(tmp_path, files, monkeypatch):
    say(files, "before")
    write = os.write

    def full(fd, data):
        if len(data) > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr(message_files.os, "write", full)
    say(files, "too long for it")
    say(files, "short")
    monkeypatch.undo()
    assert files.lost == 1
    assert sorted(content(tmp_path)) == ["before\n", "short\n"]


def test_a_torn_message_stays_on_its_own_line(tmp_path, files, monkeypatch):
    write = os.write
    monkeypatch.setattr(message_files.os, "write", lambda fd, data: write(fd, data[:3]))
    say(files, "torn message")
    monkeypatch.undo()
    say(files, "whole")
    assert content(tmp_path) == ["tor\nwhole\n"]
    assert files.lost == 1


def test_a_message_that_cannot_be_made_is_counted(files):
    files.handle(logging.LogRecord("nvrx", logging.INFO, "f", 1, "%d", ("x",), None))
    assert files.lost == 1


def test_one_file_of_several_processes_has_a_prefix_on_every_line(tmp_path):
    handlers = [Appender(str(tmp_path / "log"), f"{rank}: ") for rank in (0, 1)]
    for handler in handlers:
        say(handler, "one\n  two")
        handler.close()
    assert (tmp_path / "log").read_text() == "0: one\n0:   two\n1: one\n1:   two\n"


def test_messages_have_a_bounded_length():
    data = encode("x" * (2 * LONGEST_MESSAGE_BYTES))
    assert len(data) == LONGEST_MESSAGE_BYTES
    assert data.endswith(b"x ... (cut)\n")
    assert encode("a\udcff\n\n") == b"a\\udcff\n"


def test_directories_that_are_refused(tmp_path, monkeypatch):
    check_directory(str(tmp_path / "new" / "one"))
    assert (tmp_path / "new" / "one").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "new")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(NotADirectoryError, match=f"{name} is no directory, or a symbolic link"):
            check_directory(str(tmp_path / name))
    monkeypatch.setattr(message_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        check_directory(str(tmp_path))
