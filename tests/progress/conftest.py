from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea
from undaunted.progress.writer import PageWriter

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def area():
    with PageArea.create(2) as pages:
        yield pages


@pytest.fixture
def writer(area):
    attached = PageWriter.attach(area.env_value(0))
    assert attached.attached, attached.reason
    yield attached
    attached.detach()


@pytest.fixture(autouse=True)
def fresh_writer():
    """No test sees the writer of another one, be it of this directory or not."""
    writer_module.current = writer_module._NotYet()
    yield
    if isinstance(writer_module.current, PageWriter):
        writer_module.current.detach()
    writer_module.current = writer_module._NotYet()


@pytest.fixture
def environ(area):
    """The environment of a process that inherits page 0."""
    return {**os.environ, "PYTHONPATH": str(SRC), "UNDAUNTED_PAGE": area.env_value(0)}


@pytest.fixture
def child(area, environ):
    """Starts Python processes that have inherited page 0, and ends them."""
    started = []

    def start(code: str, *args: str, **options) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            **{"pass_fds": area.fds(), **options},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=20)


@pytest.fixture
def run(child):
    """Runs such a process to its end and returns what it printed."""

    def run_(code: str, *args: str, **options) -> str:
        process = child(code, *args, **options)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        return out

    return run_


@pytest.fixture
def clock(monkeypatch):
    """A clock the test moves: clock(ns) sets it."""
    now = [10**9]

    def set_to(ns):
        now[0] = ns

    for module in ("writer", "section"):
        monkeypatch.setattr(f"undaunted.progress.{module}.monotonic_ns", lambda: now[0])
    return set_to
