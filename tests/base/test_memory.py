from __future__ import annotations

import errno
import os

import pytest

from undaunted.base import cgroups
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


@pytest.mark.parametrize("version", [1, 2])
def test_what_the_limits_of_control_groups_leave(tmp_path, version):
    mount = tmp_path / "sys/fs/cgroup" / ("memory" if version == 1 else "")
    words = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    most, now, prefix = words if version == 1 else ("memory.max", "memory.current", "")
    unlimited = str(2**63 - 4096) if version == 1 else "max"
    for path, limit, used in (("job/step/task", unlimited, 900), ("job/step", "1000", 900),
                              ("job", "5000", 4950)):  # fmt: skip
        (mount / path).mkdir(parents=True, exist_ok=True)
        (mount / path / most).write_text(f"{limit}\n")
        (mount / path / now).write_text(f"{used}\n")
        caches = 300 if path == "job/step" else 0
        stat = f"anon 5\n{prefix}inactive_file {caches}\n{prefix}active_file 10\n"
        (mount / path / "memory.stat").write_text(stat)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(
        "4:memory:/job/step/task\n" if version == 1 else "0::/job/step/task\n"
    )
    assert cgroups.memory_left(tmp_path) == 60  # of the job
    (mount / "job" / most).write_text("50000")
    assert cgroups.memory_left(tmp_path) == 410
    (tmp_path / "proc/meminfo").write_text("MemFree: 1 kB\nSwapFree:        2 kB\n")
    assert cgroups.memory_left(tmp_path) == 410 + 2048
    (mount / "job/step" / most).unlink()
    (mount / "job" / most).write_text(unlimited)
    assert cgroups.memory_left(tmp_path) is None
    assert cgroups.memory_left(tmp_path / "nowhere") is None


def test_nothing_is_allocated_beyond_a_limit(monkeypatch):
    monkeypatch.setattr(os, "memfd_create", lambda *_: pytest.fail("allocated"))
    monkeypatch.setattr(cgroups, "memory_left", lambda: 20 << 20)
    with pytest.raises(OSError, match=r"mine.*cgroup leaves 20971520") as seen:
        create_memfd("mine", 10 << 20)
    assert seen.value.errno == errno.ENOMEM


def test_a_limit_that_others_reach_meanwhile(monkeypatch):
    left = iter([10 << 30, 10 << 30, 100 << 20])
    monkeypatch.setattr(cgroups, "memory_left", lambda: next(left))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=r"cgroup leaves 104857600"):
        create_memfd("mine", 700 << 20)
    assert os.listdir("/proc/self/fd") == before
