from __future__ import annotations

import errno
import os
import resource

from undaunted.base import process, system_calls


def test_a_kernel_that_has_all():
    assert system_calls.refused() == []
    assert system_calls.objection() == ""


def test_a_call_that_is_refused_is_named_with_the_remedy(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(process, "open_pidfd", refuse)
    assert [text.partition(" ")[0] for text in system_calls.refused()] == ["pidfd_open"]
    first, rest = system_calls.objection().split("\n")
    assert "pidfd_open (Linux 5.3)" in first
    assert os.uname().release in first
    assert "seccomp" in rest


def test_a_limit_that_is_reached_is_no_refusal():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert system_calls.refused() == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_a_build_of_python_lacks(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert "os.memfd_create" in system_calls.lacking_names()
