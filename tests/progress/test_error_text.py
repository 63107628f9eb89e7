from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
