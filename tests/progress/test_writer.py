from __future__ import annotations

import logging
import os
import threading

import pytest

from undaunted.progress import layout
from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea
from undaunted.progress.snapshot import Phase
from undaunted.progress.writer import CHUNK, NullWriter, PageWriter, current_writer

# --- heartbeats and steps -------------------------------------------------------------------------


def test_attached(area, writer):
    page = area.snapshot(0)
    assert (page.pid, page.phase, page.problem) == (os.getpid(), Phase.STARTING, "")
    assert page.pid_start > 0
    assert page.attached_ns is not None
    assert not area.kickless(0)


def test_heartbeats(area, writer, clock):
    for at in (1000, 3000, 9000):
        clock(at)
        writer.heartbeat()
    page = area.snapshot(0)
    assert (page.heartbeat_count, page.heartbeat_ns, page.first_heartbeat_ns) == (3, 9000, 1000)
    assert page.heartbeat_max_ns == 6000
    assert (page.phase, page.initialized_ns) == (Phase.INITIALIZED, 9000 - 8000)


def test_steps(area, writer, clock):
    clock(1000)
    writer.step(7)
    clock(5000)
    writer.step(8)
    page = area.snapshot(0)
    assert (page.phase, page.iteration, page.iteration_ns) == (Phase.STEPPING, 8, 5000)
    assert (page.first_iteration, page.first_step_ns) == (7, 1000)
    assert (page.heartbeat_count, page.heartbeat_ns) == (2, 5000)


def test_one_step_of_a_chunk_notes_the_cpu_time(writer):
    for iteration in (3, 4, CHUNK, CHUNK + 1, 2 * CHUNK):
        writer.step(iteration)
    cpu = [cpu_ns for _, _, cpu_ns in writer.steps]
    assert [bool(ns) for ns in cpu] == [False, False, True, False, True]
    assert cpu[4] >= cpu[2]


class Number:
    """Like a tensor or a numpy integer: has no type in common with int."""

    def __add__(self, other):
        return Number()

    def __index__(self):
        return 5


@pytest.mark.parametrize(("iteration", "stored"), [(0, 0), (Number(), 4), (3.0, 3), (True, 1)])
def test_numbers_of_other_kinds(area, writer, iteration, stored):
    writer.step(iteration)
    assert area.snapshot(0).iteration == stored


@pytest.mark.parametrize("iteration", ["x", -1, -5])
def test_the_first_iteration_is_the_first_that_is_one(area, writer, clock, iteration, caplog):
    clock(1000)
    writer.step(iteration)
    clock(5000)
    writer.step(40)
    writer.step(41)
    writer.step(-5)
    page = area.snapshot(0)
    assert (page.first_iteration, page.iteration, page.first_step_ns) == (40, 41, 1000)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"step({iteration!r}): ")


@pytest.mark.parametrize("iteration", [None, "x", -1, -5, 2**64, float("nan")])
def test_what_is_no_iteration_is_still_a_heartbeat(area, writer, iteration, caplog):
    writer.step(iteration)
    writer.step(iteration)
    page = area.snapshot(0)
    assert (page.iteration, page.heartbeat_count) == (None, 2)
    assert len(caplog.records) == 1


def test_step_calls_the_hook_after_it_is_stored(area, writer, monkeypatch):
    seen = []
    monkeypatch.setattr(
        writer_module, "on_step", lambda i: seen.append((i, area.snapshot(0).iteration))
    )
    writer.step(4)
    assert seen == [(4, 4)]


# --- life cycle -----------------------------------------------------------------------------------


def test_milestones_are_stored_once_and_kick(area, writer, clock):
    area.drain_kick()
    clock(7)
    writer.milestone("first_line")
    clock(8)
    writer.milestone("first_line")
    assert area.snapshot(0).first_line_ns == 7
    assert os.eventfd_read(area.kick_fd) == 1


def test_shut_down_and_begin_again(area, writer, clock):
    """Old heartbeats must not count against a rank that begins again hours later."""
    clock(1000)
    writer.step(1)
    writer.open_section("a")
    writer.shut_down()
    page = area.snapshot(0)
    assert page.phase is Phase.SHUT_DOWN
    assert page.sections["a"].open_since_ns is None
    writer.heartbeat()
    assert area.snapshot(0).phase is Phase.SHUT_DOWN
    writer.shut_down()
    clock(10**15)
    writer.initialize(3)
    page = area.snapshot(0)
    assert (page.phase, page.initialized_ns) == (Phase.STEPPING, 10**15)
    assert page.heartbeat_ns is page.out_of_section_since_ns is page.first_heartbeat_ns is None
    assert page.warmup_iterations == 3
    clock(10**15 + 5000)
    writer.heartbeat()
    page = area.snapshot(0)
    assert page.heartbeat_max_ns == 0
    assert page.heartbeat_count == 3


def test_evidence_signal(area, writer):
    writer.arm_evidence(40)
    assert area.snapshot(0).evidence_signal == 40
    writer.arm_evidence(0)
    assert area.snapshot(0).evidence_signal == 0


def test_events_are_cut_to_size(area, writer):
    writer.event("n" * 100, "t" * 1000)
    writer.event("\u00e9" * 40, "")
    (long, cut), lost = area.drain_events(0)
    assert lost == 0
    assert long.name == "n" * 64
    assert set(long.text) == {"t"}
    assert len(long.text) >= 150
    assert cut.name == "\u00e9" * 32


def test_events_of_anything_do_not_raise(area, writer):
    writer.event(3, ValueError("bad"))
    ((seen,), _) = area.drain_events(0)
    assert (seen.name, seen.text) == ("3", "bad")


def fail():
    raise ValueError("bad value 17")


def test_error(area, writer):
    area.drain_kick()
    try:
        fail()
    except ValueError as error:
        writer.record_error(error)
    page = area.snapshot(0)
    assert (page.phase, page.error.type) == (Phase.FAILED, "ValueError")
    assert (page.error.message, page.error.pid) == ("bad value 17", os.getpid())
    assert "in fail" in page.error.traceback
    assert page.error.traceback.startswith("Traceback")
    assert os.eventfd_read(area.kick_fd) == 1


def test_no_kick_blocks(area, writer):
    area.drain_kick()
    os.eventfd_write(area.kick_fd, 2**64 - 2)
    writer.initialize()


# --- without a page -------------------------------------------------------------------------------


def test_without_a_launcher_it_is_said_once(monkeypatch, caplog):
    monkeypatch.delenv("UNDAUNTED_PAGE", raising=False)
    writer = current_writer()
    assert current_writer() is writer
    assert (writer.attached, writer.reason) == (False, "UNDAUNTED_PAGE is not set")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "undaunted run" in line


def test_the_null_writer_does_everything(caplog):
    writer = NullWriter("because")
    writer.heartbeat()
    writer.step(1)
    with writer.section("a"):
        writer.event("e")
    writer.milestone("first_line")
    writer.arm_evidence(40)
    writer.record_error(ValueError())
    writer.shut_down()
    writer.initialize()
    writer.close_all()
    writer.detach()
    assert writer.limits_json() == b""
    with pytest.raises(RuntimeError, match="no launcher to ask: because"):
        writer.request(b"ask", 1)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nonsense", "cannot read"),
        ("v2:1:2:3:4:5", "cannot read"),
        ("v1:1:2:3:4", "cannot read"),
        ("v1:1:2:3:4:-5", "cannot read"),
        ("v1:1:0:3:4:99999999", "launcher is gone"),
        ("v1:99999999999999999999:0:3:4:1", "launcher"),
        pytest.param(f"v1:0:0:3:4:{os.getpid()}", "gone", id="of-this-process"),
    ],
)
def test_an_unusable_value(value, reason):
    writer = PageWriter.attach(value)
    assert not writer.attached
    assert reason in writer.reason


def test_an_index_beyond_the_pages(area):
    pages, kick, ack, _ = area.fds()
    writer = PageWriter.attach(f"v1:{pages}:2:{kick}:{ack}:{os.getpid()}")
    assert "page 2 of the launcher cannot be mapped" in writer.reason


@pytest.mark.parametrize(
    ("word", "reason"), [(layout.MAGIC, "does not begin"), (layout.VERSION, "layout version")]
)
def test_a_page_of_another_build_is_left_alone(area, word, reason):
    area._words[0][word] = 99
    writer = PageWriter.attach(area.env_value(0))
    assert not writer.attached
    assert reason in writer.reason
    writer.heartbeat()


def test_the_same_process_gets_the_same_writer(area, writer):
    assert PageWriter.attach(area.env_value(0)) is writer
    assert current_writer() is writer


def test_sections_survive_the_end_of_the_agents_memory():
    """Spec 3.1 item 4: the agent is gone; the rank goes on as if nothing had happened."""
    area = PageArea.create(1)
    writer = PageWriter.attach(area.env_value(0))
    section = writer.section("a")
    area.close()
    with section:
        writer.heartbeat()
        writer.step(1)
    writer.initialize()
    writer.record_error(ValueError())
    with pytest.raises(TimeoutError):
        writer.request(b"ask", 0.001)
    writer.detach()


def test_descriptors_reused_for_something_else_are_not_written(area, writer, tmp_path):
    path = tmp_path / "innocent"
    saved = os.dup(area.kick_fd)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), area.kick_fd)
        writer.initialize()
        writer.milestone("first_line")
    finally:
        os.dup2(saved, area.kick_fd, inheritable=False)
        os.close(saved)
    assert path.read_bytes() == b""


def test_an_eventfd_of_the_program_is_neither_written_nor_read(area, writer):
    ours = area.fds()[1:3]
    saved = [os.dup(fd) for fd in ours]
    theirs = [os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(7, os.EFD_NONBLOCK)]
    try:
        for other, fd in zip(theirs, ours, strict=True):
            os.dup2(other, fd)
        writer.initialize()
        with pytest.raises(TimeoutError):
            writer.request(b"ask", 0.001)
    finally:
        for kept, fd in zip(saved, ours, strict=True):
            os.dup2(kept, fd, inheritable=False)
            os.close(kept)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(theirs[0])
    assert os.eventfd_read(theirs[1]) == 7
    assert area.kickless(0), "the agent looks at the page by itself from now on"
    for fd in theirs:
        os.close(fd)


def test_a_refused_child_says_so_quietly(area, monkeypatch, caplog):
    area._words[0][layout.VERSION] = 99
    monkeypatch.setenv("UNDAUNTED_PAGE", area.env_value(0))
    with caplog.at_level(logging.INFO, "undaunted"):
        assert not current_writer().attached
    (record,) = caplog.records
    assert (record.levelno, "not watched" in record.getMessage()) == (logging.INFO, True)


# --- requests -------------------------------------------------------------------------------------


def answering(area, reply):
    """Answers one request on another thread, as the agent does after a kick."""

    def answer():
        os.eventfd_read(area.kick_fd)
        request = area.take_request(0)
        area.answer(0, request, reply(request.payload))

    area.drain_kick()
    os.set_blocking(area.kick_fd, True)
    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_requests_are_answered(area, writer):
    for text in (b"one", b"two"):
        thread = answering(area, bytes.upper)
        assert writer.request(text, 20.0) == text.upper()
        thread.join(20)
        os.set_blocking(area.kick_fd, False)


def test_a_late_answer_is_not_taken_for_the_next(area, writer):
    with pytest.raises(TimeoutError):
        writer.request(b"one", 0)
    area.answer(0, area.take_request(0), b"late")
    with pytest.raises(TimeoutError):
        writer.request(b"two", 0.001)


def test_a_request_that_is_too_long(writer):
    with pytest.raises(ValueError, match="4097 bytes is too long, 4096"):
        writer.request(bytes(4097), 1)
