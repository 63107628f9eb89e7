from __future__ import annotations

import errno
import fcntl
import os
import select

import pytest

from tests.leaks import count_fds
from undaunted.progress import layout
from undaunted.progress.area import PageArea
from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import Phase
from undaunted.progress.writer import PageWriter


def readable(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def test_no_memory_is_an_error_with_the_remedy(monkeypatch):
    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = count_fds()
    message = rf"{2 * layout.PAGE_BYTES} bytes of memory.*free memory"
    with pytest.raises(OSError, match=message) as raised:
        PageArea.create(2)
    assert raised.value.errno == errno.ENOSPC
    assert count_fds() == before


def test_no_descriptors_left_leaves_nothing_open(monkeypatch):
    def none_left(value, flags):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "eventfd", none_left)
    before = count_fds()
    with pytest.raises(OSError, match="Too many open files"):
        PageArea.create(2)
    assert count_fds() == before


def test_a_node_without_ranks():
    with pytest.raises(ValueError, match="at least one rank"):
        PageArea.create(0)


def test_descriptors_are_passed_on_only_on_purpose(area):
    assert len(set(area.fds())) == 4
    assert area.kick_fd in area.fds()
    assert not any(os.get_inheritable(fd) for fd in area.fds())


def test_nobody_can_cut_the_memory_short(area):
    with pytest.raises(PermissionError):
        os.ftruncate(area.fds()[0], 0)
    assert fcntl.fcntl(area.fds()[0], 1034)


def test_env_value(area):
    pages, kick, _, ack = area.fds()
    assert area.env_value(1) == f"v1:{pages}:1:{kick}:{ack}:{os.getpid()}"


def test_pages_are_apart(area, writer):
    other = PageWriter.attach(area.env_value(1))
    other.step(5)
    writer.step(9)
    assert [area.snapshot(i).iteration for i in range(2)] == [9, 5]
    other.detach()


def test_reset_forgets_the_rank_and_keeps_the_limits(area, writer):
    area.set_limits(Limits(heartbeat_s=7.0))
    writer.step(3)
    writer.event("a")
    area.drain_events(0)
    writer.detach()
    area.reset(0)
    snapshot = area.snapshot(0)
    assert (snapshot.phase, snapshot.pid, snapshot.iteration) == (Phase.EMPTY, 0, None)
    assert area.drain_events(0) == ([], 0)
    again = PageWriter.attach(area.env_value(0))
    assert b'"heartbeat_s":7.0' in again.limits_json()
    again.event("b")
    assert [event.name for event in area.drain_events(0)[0]] == ["b"]
    again.detach()


def test_limits_too_long_for_the_page_are_unknown(area, writer):
    area.set_limits(Limits(sections={f"section {i:060}": 1.0 for i in range(120)}))
    assert writer.limits_json() == b""


def test_events_come_once_and_in_order(area, writer):
    for number in range(5):
        writer.event("n", str(number))
    events, lost = area.drain_events(0)
    assert ([event.text for event in events], lost) == (["0", "1", "2", "3", "4"], 0)
    assert area.drain_events(0) == ([], 0)


def test_events_that_were_overwritten_are_counted(area, writer):
    for number in range(layout.RING_SLOTS + 7):
        writer.event("n", str(number))
    events, lost = area.drain_events(0)
    assert [event.text for event in events] == [str(n) for n in range(7, layout.RING_SLOTS + 7)]
    assert lost == 7


def test_a_torn_event_is_lost_and_the_others_are_not(area, writer):
    for number in range(3):
        writer.event("n", str(number))
    area._words[0][layout.ring_slot(2)] ^= 1
    events, lost = area.drain_events(0)
    assert ([event.text for event in events], lost) == (["0", "2"], 1)


@pytest.mark.parametrize("head", [2**64 - 1, 10**6])
def test_a_nonsense_head_of_the_ring_is_survived(area, writer, head):
    area._words[0][layout.RING_HEAD] = head
    assert area.drain_events(0) == ([], head)
    area._words[0][layout.RING_HEAD] = 3
    assert area.drain_events(0) == ([], 0)


def test_a_page_of_garbage(area, writer):
    area._bytes[0][:] = b"\xff" * layout.PAGE_BYTES
    assert "damaged" in area.snapshot(0).problem
    assert area.drain_events(0) == ([], 0)
    assert area.take_request(0) is None
    assert isinstance(area.kickless(0), bool)


def test_kicks_are_forgotten_together(area, writer):
    writer.initialize()
    assert readable(area.kick_fd)
    area.drain_kick()
    assert not readable(area.kick_fd)
    area.drain_kick()


def test_an_answer_to_a_rank_that_is_gone_is_dropped(area, writer):
    with pytest.raises(TimeoutError):
        writer.request(b"old", 0)
    old = area.take_request(0)
    writer.detach()
    area.reset(0)
    again = PageWriter.attach(area.env_value(0))
    area.answer(0, old, b"answer to the old rank")
    with pytest.raises(TimeoutError):
        again.request(b"new", 0)
    again.detach()


def test_a_request_is_taken_once(area, writer):
    with pytest.raises(TimeoutError, match="did not answer"):
        writer.request(b"ask", 0)
    assert area.take_request(0).payload == b"ask"
    assert area.take_request(0) is None


def test_acks_of_nobody_do_not_block(area, writer):
    with pytest.raises(TimeoutError):
        writer.request(b"ask", 0)
    request = area.take_request(0)
    os.eventfd_write(area.fds()[2], 2**64 - 2)
    area.answer(0, request, b"ok")


def test_a_closing_between_two_reads_never_shows_an_old_time_outside(area, writer, monkeypatch):
    """The rank leaves its section while the agent copies the page."""
    writer.open_section("a")
    writer.close_section("a")
    old = area.snapshot(0).out_of_section_since_ns
    writer.open_section("a")

    class ClosesWhenTheTableIsRead:
        def __init__(self, page):
            self.page = page

        def __getitem__(self, part):
            if part.start == layout.HEAD_BYTES:
                writer.close_section("a")
            return self.page[part]

    pages = [ClosesWhenTheTableIsRead(area._bytes[0]), area._bytes[1]]
    monkeypatch.setattr(area, "_bytes", pages)
    seen = area.snapshot(0).out_of_section_since_ns
    monkeypatch.undo()
    assert seen > old


def test_close_twice():
    area = PageArea.create(1)
    area.close()
    area.close()
