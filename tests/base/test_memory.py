from __future__ import annotations

import errno
import os

import pytest

from undaunted.base.memory import create_memfd


def test_it_is_there_from_the_beginning_and_keeps_its_size():
    fd = create_memfd("mine", 5000)
    try:
        assert os.fstat(fd).st_size == 5000
        assert os.fstat(fd).st_blocks * 512 >= 5000
        assert "mine" in os.readlink(f"/proc/self/fd/{fd}")
        assert not os.get_inheritable(fd)
        for size in (0, 5001):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
    finally:
        os.close(fd)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_without_memory_the_remedy_is_named(monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(
        OSError, match=r"cannot allocate 5000 bytes .*\(mine\).*free memory"
    ) as seen:
        create_memfd("mine", 5000)
    assert seen.value.errno == number


def test_other_errors_stay_as_they_are(monkeypatch):
    def fail(*_):
        raise OSError(errno.EINTR, "interrupted")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(InterruptedError, match="interrupted"):
        create_memfd("mine", 5000)
