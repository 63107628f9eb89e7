from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.worker import messages
from undaunted.fault_tolerance.worker.messages import WorkerSpec

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=[]), max_size=20)


def spec(**fields):
    defaults = {"local_rank": 0, "kind": "script", "target": "x", "args": [], "env": {}, "cwd": "/"}
    return WorkerSpec(**{**defaults, "agent_pid": 1, **fields})


@given(ANY_TEXT, st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3), st.integers(0, 2**40))
def test_what_is_sent_arrives(text, env, number):
    sent = messages.Fork(number=number, specs=[spec(target=text, env=env, args=[text])])
    a, b = socket.socketpair()
    with a, b:
        messages.send(a, sent, 1.0)
        assert messages.receive(b, 1.0) == sent


def test_bytes_that_are_not_utf8_survive():
    value = os.fsdecode(b"\xff\xfe")
    frame = messages.encode(messages.Fork(number=1, specs=[spec(env={"A": value})]))
    assert messages.decode(frame[messages.HEADER.size :]).specs[0].env == {"A": value}


@given(st.binary(max_size=200))
def test_garbage_is_no_message(body):
    with pytest.raises(messages.ProtocolError, match="not a message"):
        messages.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[" * 100_000,
        b'{"type": "other"}',
        b'{"type": "forked", "number": 1, "pids": ["x"]}',
        b'{"type": "ready"}',
    ],
)
def test_wrong_fields_are_no_message(body):
    with pytest.raises(messages.ProtocolError):
        messages.decode(body)


def test_too_large():
    with pytest.raises(messages.ProtocolError, match="exceeds"):
        messages.body_size(messages.HEADER.pack(messages.MAX_BODY + 1))


def test_too_large_to_send(monkeypatch):
    monkeypatch.setattr(messages, "MAX_BODY", 10)
    with pytest.raises(messages.ProtocolError, match="exceeds the limit of 10"):
        messages.encode(messages.Prepare(modules=["a long name"]))


@pytest.mark.parametrize("part", [b"", b"\0\0", b"\0\0\0\5ab"])
def test_the_other_side_ends(part):
    a, b = socket.socketpair()
    with b:
        with a:
            a.sendall(part)
        assert messages.receive(b, 1.0) is None


@pytest.mark.parametrize("part", [b"", b"\0\0"])
def test_the_other_side_ends_without_having_read_everything(part):
    a, b = socket.socketpair()
    with b:
        with a:
            messages.send(b, messages.Ready(modules=[], import_ns=1), 1.0)
            a.sendall(part)
        assert messages.receive(b, 1.0) is None


def test_the_rest_does_not_come():
    a, b = socket.socketpair()
    with a, b:
        a.sendall(b"\0\0")
        with pytest.raises(TimeoutError):
            messages.receive(b, 0.01)
