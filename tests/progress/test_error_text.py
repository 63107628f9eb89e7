from __future__ import annotations

import os
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.base.signals import handlers_off
from undaunted.progress import layout
from undaunted.progress.error_text import encode_error, shorten
from undaunted.progress.reader import ERROR


def decode(body):
    at_ns, _, *lengths = ERROR.unpack_from(body)
    texts, start = [], ERROR.size
    for length in lengths:
        texts.append(body[start : start + length].decode())
        start += length
    assert start == len(body) <= layout.ERROR_BYTES
    return at_ns, *texts


@given(st.text(), st.integers(64, 400))
def test_shorten_fits_and_keeps_both_ends(text, room):
    short = shorten(text, room)
    assert len(short) <= room
    whole = text.encode(errors="backslashreplace")
    if len(whole) <= room:
        assert short == whole
    else:
        head, note, tail = short.partition(b"\n... ")
        assert note
        assert whole.startswith(head)
        assert whole.endswith(tail.rpartition(b"left out ...\n")[2])


def recurse(depth):
    if depth:
        recurse(depth - 1)
    raise KeyError("\u00e9" * 5000)


def test_a_long_traceback_keeps_its_beginning_and_end():
    try:
        recurse(150)
    except KeyError as error:
        cause = RuntimeError("x" * 10**5)
        cause.__cause__ = error
        _, kind, message, traceback = decode(encode_error(cause, 7))
    assert kind == "RuntimeError"
    assert message.startswith("xxx")
    assert "left out" in message
    assert traceback.startswith("Traceback")
    assert "bytes or more left out" in traceback
    assert traceback.endswith("xxx\n")


class NastyError(Exception):
    def __str__(self):
        raise SystemError


class Hidden:
    class Error(Exception):
        pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (NastyError(), f"{__name__}.NastyError"),
        (Hidden.Error("\udc80"), f"{__name__}.Hidden.Error"),
        (type("T" * 1000, (Exception,), {})(), None),
    ],
)
def test_any_exception_can_be_recorded(error, kind):
    at_ns, said, _, _ = decode(encode_error(error, 5))
    assert at_ns == 5
    assert kind in (None, said)


@pytest.mark.parametrize(
    ("code", "message"), [(True, "1"), (False, "0"), (-1, "-1"), (None, ""), ("bye", "bye")]
)
def test_exits_are_told_by_their_code(code, message):
    error = SystemExit() if code is None else SystemExit(code)
    assert decode(encode_error(error, 1))[2] == message


class SlowToDescribeError(Exception):
    """While it is described, a worker of a loader is found to be dead."""

    def __str__(self):
        os.kill(os.getpid(), signal.SIGCHLD)
        return "connection reset"


@pytest.fixture
def on_sigchld():
    """Set a handler in Python, as torch's DataLoader does."""

    def raise_it(*_):
        raise RuntimeError("worker 4711 was killed")

    before = signal.signal(signal.SIGCHLD, raise_it)
    yield raise_it
    signal.signal(signal.SIGCHLD, before)


def test_what_a_handler_of_signals_raises_meanwhile_is_recorded(on_sigchld):
    """The record is whole; the handler runs, and what it raises goes its way afterwards."""
    records = []
    with pytest.raises(RuntimeError, match="worker 4711"), handlers_off():
        records.append(encode_error(SlowToDescribeError(), 5))
    _, kind, message, traceback = decode(records[0])
    assert (kind, message) == ("RuntimeError", "worker 4711 was killed")
    assert "SlowToDescribeError: connection reset" in traceback
    assert signal.getsignal(signal.SIGCHLD) is on_sigchld


def test_an_end_that_a_handler_asks_for_meanwhile_is_no_error():
    def leave(*_):
        raise SystemExit(3)

    before = signal.signal(signal.SIGCHLD, leave)
    records = []
    try:
        with pytest.raises(SystemExit), handlers_off():
            records.append(encode_error(SlowToDescribeError(), 5))
    finally:
        signal.signal(signal.SIGCHLD, before)
    _, kind, message, _ = decode(records[0])
    assert (kind, message) == (f"{__name__}.SlowToDescribeError", "connection reset")


def test_handlers_that_put_others_in_their_place_are_let(on_sigchld):
    def once(*_):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    signal.signal(signal.SIGCHLD, once)
    with handlers_off():
        os.kill(os.getpid(), signal.SIGCHLD)
        assert signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN


def test_outside_of_the_main_thread_nothing_is_put_off(on_sigchld):
    def describe():
        with handlers_off():
            found.append(signal.getsignal(signal.SIGCHLD))

    found = []
    thread = threading.Thread(target=describe)
    thread.start()
    thread.join()
    assert found == [on_sigchld]
