"""Looking at the pages of an agent, here of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from undaunted.base import process
from undaunted.journal.owner import this_process
from undaunted.progress import layout
from undaunted.progress.area import PageArea
from undaunted.progress.snapshot import Phase
from undaunted.progress.writer import PageWriter
from undaunted.top import pages as module
from undaunted.top.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Iterator

ME = this_process(1, "0")


@pytest.fixture
def area() -> Iterator[PageArea]:
    with PageArea.create(2) as area:
        yield area


@pytest.fixture
def pages() -> Iterator[Pages]:
    pages = Pages(ME)
    yield pages
    pages.close()


def test_pages_are_seen_as_they_are_now(area: PageArea, pages: Pages) -> None:
    assert [look.page.phase for look in pages.look()] == [Phase.EMPTY, Phase.EMPTY]
    writer = PageWriter.attach(area.env_value(1))
    writer.step(7)
    writer.event("checkpoint", "saved step=7")
    try:
        first, second = pages.look()
        assert (first.page.phase, first.state) == (Phase.EMPTY, "")
        assert (second.page.pid, second.page.iteration) == (os.getpid(), 7)
        assert second.state == process.state(os.getpid())
        assert 0 < second.cpu_s <= time.process_time() + 0.02
        assert [event.text for event in second.events] == ["saved step=7"]
        assert pages.problem == ""
    finally:
        writer.detach()


def test_nothing_is_ever_written(area: PageArea, pages: Pages) -> None:
    pages.look()
    memory = pages._memory
    assert memory is not None
    with pytest.raises(TypeError):
        memory[0] = 1


def test_garbage(area: PageArea, pages: Pages) -> None:
    area._bytes[0][:] = b"\xff" * layout.PAGE_BYTES
    first, second = pages.look()
    assert "damaged" in first.page.problem
    assert second.page.problem == ""


def test_an_agent_that_has_no_pages_yet(pages: Pages) -> None:
    assert pages.look() == []
    assert (pages.running, pages.problem) == (True, "")


def test_an_agent_that_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        start = process.start_time(other.pid) or 0
        other.kill()
        other.wait()
    pages = Pages(msgspec.structs.replace(ME, pid=other.pid, start_ticks=start))
    assert pages.look() == []
    assert (pages.running, pages.problem) == (False, "")


def test_an_agent_that_was_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        try:
            start = process.start_time(other.pid) or 0
            pages = Pages(msgspec.structs.replace(ME, pid=other.pid, start_ticks=start))
            pages.look()
            assert (pages.running, pages.stopped) == (True, False)
            other.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)
            pages.look()
            assert (pages.running, pages.stopped) == (True, True)
        finally:
            other.kill()
            pages.close()


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


def test_the_parent_of_an_agent_was_stopped() -> None:
    """It is the process that the user started; the agent goes on."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PARENT], **streams) as parent:
        agent = int(parent.stdout.readline())
        start = process.start_time(agent) or 0
        pages = Pages(msgspec.structs.replace(ME, pid=agent, start_ticks=start))
        try:
            pages.look()
            assert (pages.stopped, pages.front_stopped) == (False, False)
            parent.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, parent.pid, os.WSTOPPED)
            pages.look()
            assert (pages.stopped, pages.front_stopped) == (False, True)
        finally:
            parent.send_signal(signal.SIGCONT)
            pages.close()
            parent.stdin.close()
            parent.wait(20)
    assert not pages.look()
    assert not pages.front_stopped


def test_another_process_with_the_same_pid(area: PageArea) -> None:
    pages = Pages(msgspec.structs.replace(ME, start_ticks=ME.start_ticks + 1))
    assert (pages.look(), pages.running) == ([], False)


@pytest.mark.parametrize("field", ["boot_id", "pid_namespace"])
def test_an_agent_elsewhere(area: PageArea, field: str) -> None:
    other = {"boot_id": "other", "pid_namespace": 1}[field]
    pages = Pages(msgspec.structs.replace(ME, **{field: other}))
    assert (pages.look(), pages.running) == ([], None)
    assert "another machine or in another container" in pages.problem


def test_an_agent_of_somebody_else(monkeypatch: pytest.MonkeyPatch, pages: Pages) -> None:
    def refused(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(module.os, "listdir", refused)
    assert pages.look() == []
    assert pages.problem.endswith("are not shown to this user: run as the launcher's user")


def test_a_memfd_that_cannot_be_pages(pages: Pages) -> None:
    fd = os.memfd_create("undaunted-pages")
    try:
        os.truncate(fd, 100)
        assert pages.look() == []
        assert pages.problem.endswith("have 100 bytes")
    finally:
        os.close(fd)


def test_no_descriptor_is_kept(area: PageArea, pages: Pages) -> None:
    before = set(os.listdir("/proc/self/fd"))
    pages.look()
    maps = Path("/proc/self/maps").read_text().count("undaunted-pages")
    # The mapping itself keeps one, as Python's do.
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1
    pages.close()
    pages.close()
    assert Path("/proc/self/maps").read_text().count("undaunted-pages") == maps - 1
