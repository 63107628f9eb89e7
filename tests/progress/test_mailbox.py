from __future__ import annotations

import os
import threading

import pytest


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
