"""Aborts by backend."""

from __future__ import annotations

import logging
import sys
import threading
from types import SimpleNamespace

import pytest

from undaunted.inprocess.communication import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_aborts", dict(registry._aborts))
    monkeypatch.setattr(registry, "_named", set())


def test_each_function_is_called_once() -> None:
    calls: list[str] = []

    def both() -> None:
        calls.append("both")

    registry.register("NCCL", both)
    registry.register("xccl", both)
    registry.register("gloo", lambda: calls.append("gloo"))
    registry.abort({"nccl", "xccl", "gloo"})
    assert calls == ["gloo", "both"]
    registry.abort({"fake"})
    assert len(calls) == 2


def test_nccl_is_aborted_under_each_of_its_names(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """torch 2.15 has nccl, which is nccl2 there, nccl-lazy and nccl-legacy."""
    caplog.set_level(logging.WARNING, "undaunted")
    calls: list[str] = []
    torch = SimpleNamespace(
        is_initialized=lambda: True, _abort_process_group=lambda: calls.append("all")
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", torch)  # type: ignore[arg-type]
    for name in ("nccl", "nccl2", "nccl-lazy", "nccl-legacy"):
        registry.abort({name})
    registry.abort({"nccl2", "nccl-lazy"})
    assert len(calls) == 5
    assert not caplog.records


def test_an_unknown_backend_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "undaunted")
    registry.abort({"mpi", "fake"})
    registry.abort({"mpi"})
    assert [record.message for record in caplog.records if "'mpi'" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
    assert "hard timeout" in caplog.text


def test_a_failure_is_logged_and_the_others_are_aborted(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def fail() -> None:
        raise ValueError("no way")

    registry.register("gloo", fail)
    registry.register("mine", lambda: calls.append("mine"))
    registry.abort({"gloo", "mine"})
    assert calls == ["mine"]
    assert "Abort of backend gloo has failed" in caplog.text
    assert "no way" in caplog.text


def test_an_abort_that_hangs_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()
    registry.register("mine", lambda: go_on.wait(30) and None)
    registry.abort({"mine"}, deadline_s=0.01)
    go_on.set()
    assert "Abort of backend mine has not ended within 0.01 s" in caplog.text
