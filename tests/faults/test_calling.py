"""Calling somebody outside, who may do anything."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.faults.calling import VARIABLE, call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def answering(path: Path, answer: bytes | None) -> Iterator[list[bytes]]:
    """Take one line; answer and hang up, or with None say nothing until the end."""
    heard: list[bytes] = []
    end = threading.Event()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                heard.append(lines.readline())
                if answer is None:
                    end.wait(30)
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield heard
        finally:
            end.set()
            thread.join(30)


@pytest.mark.parametrize("answer", [b"done\n", b"", b"half a line", b"x" * 10_000])
def test_it_says_who_calls_and_goes_on_whatever_the_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    answer: bytes,
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "s"))
    with answering(tmp_path / "s", answer) as heard:
        call("disk-full-1", rank=3, iteration=40)
    expected = {"fault": "disk-full-1", "rank": 3, "iteration": 40, "pid": os.getpid()}
    assert json.loads(heard[0]) == expected
    assert capfd.readouterr().err == ""


def test_it_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "s"))
    with answering(tmp_path / "s", None):
        call("f", rank=0, iteration=-1, patience_s=0.05)
    assert "fault f from outside: no answer from" in capfd.readouterr().err


def test_nobody_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    call("f", rank=0, iteration=1)
    assert "No such file" in capfd.readouterr().err
    monkeypatch.delenv(VARIABLE)
    call("f", rank=0, iteration=1)
    assert "only `undaunted chaos` makes this fault" in capfd.readouterr().err
