"""Plug-ins that abort; what they do with real ranks: communication/test_job."""

from __future__ import annotations

import json
import stat
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.attribution.flight import recorder
from undaunted.checkpointing import aborting
from undaunted.checkpointing.async_ckpt import core
from undaunted.inprocess import abort
from undaunted.inprocess.communication import registry
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.state import State

if TYPE_CHECKING:
    from pathlib import Path

STATE = State(rank=3, world_size=4, active_rank=2, active_world_size=3, iteration=5).freeze()


def test_plug_ins_compose() -> None:
    both = Compose(abort.AbortTransformerEngine(), abort.AbortPersistentCheckpointProcesses())
    assert isinstance(both, abort.Abort)
    assert both(STATE) is STATE


@pytest.mark.torch
def test_groups_are_gone_and_the_recorder_was_dumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist = pytest.importorskip("torch.distributed")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    monkeypatch.setenv("NVRX_FR_TRACE_PATH", str(tmp_path / "environment"))
    for plug_in in (abort.AbortTorchDistributed(), abort.AbortTorchDistributed(str(tmp_path))):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        assert plug_in(STATE) is STATE
        assert not dist.is_initialized()
    for directory in (tmp_path / "environment", tmp_path):
        records = json.loads((directory / "iter_5" / "_dump_2.json").read_text())
        assert (records["rank"], records["world_size"]) == (0, 1)
        assert "entries" in records


@pytest.mark.torch
def test_a_dump_has_only_what_was_called_since_the_abort_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist = pytest.importorskip("torch.distributed")
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    monkeypatch.setattr(recorder, "_forgotten_ns", 0)
    entries = [{"time_created_ns": 1, "pg_id": 0}, {"time_created_ns": 1 << 62, "pg_id": 2}]
    held = {"entries": entries, "pg_status": {"0": {}, "2": {}}}
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        abort.AbortTorchDistributed()(STATE)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = recorder.dump(empty=True)
    monkeypatch.setattr(recorder, "_texts", lambda _: [json.dumps(held)])
    later = recorder.dump()
    abort.AbortTorchDistributed()(STATE)
    assert found is None or (found["entries"], found["pg_status"]) == ([], {})
    assert later is not None
    assert (later["entries"], later["pg_status"]) == (entries[1:], {"2": {}})


@pytest.mark.torch
def test_nothing_is_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dist = pytest.importorskip("torch.distributed")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    (tmp_path / "file").touch()

    def fail() -> None:
        raise RuntimeError("no way")

    monkeypatch.setattr(registry, "_aborts", {"gloo": fail})
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    abort.AbortTorchDistributed(str(tmp_path / "file"))(STATE)
    assert not dist.is_initialized()
    assert "Dump of the Flight Recorder" in caplog.text
    assert "Abort of backend gloo has failed" in caplog.text


@pytest.mark.parametrize("home", ["fp8", "quantization"])
def test_transformer_engine(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    base = SimpleNamespace(destroy_ub=lambda: calls.append("buffers"))
    manager = SimpleNamespace(reset=lambda: calls.append("state"))
    state = SimpleNamespace(FP8GlobalStateManager=manager)
    engine = "transformer_engine.pytorch"
    monkeypatch.setitem(sys.modules, f"{engine}.module.base", base)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, f"{engine}.{home}", state)  # type: ignore[arg-type]
    abort.AbortTransformerEngine()(STATE)
    assert calls == ["buffers", "state"]


def test_whatever_saves_is_told() -> None:
    class Saver:
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1

    saver, gone = Saver(), Saver()
    aborting.register(saver)
    aborting.register(gone)
    del gone
    abort.AbortPersistentCheckpointProcesses()(None)  # type: ignore[arg-type]
    assert saver.aborted == 1


def test_a_saver_that_cannot_be_ended(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("gone")

    monkeypatch.setattr(aborting, "abort_all", fail)
    abort.AbortPersistentCheckpointProcesses()(STATE)
    assert "End of checkpoint workers has failed" in caplog.text


def test_asynchronous_saves_are_dropped() -> None:
    queue = core.AsyncCallsQueue()
    queue.schedule_async_request(core.AsyncRequest(None, (), []))
    assert abort.AbortPersistentCheckpointProcesses()(STATE) is STATE
    assert queue.get_num_unfinalized_calls() == 0


def holds(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any] | None) -> None:
    monkeypatch.setattr(recorder, "dump", lambda *, empty: found if empty else None)


def test_one_file_for_each_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holds(monkeypatch, {"entries": []})
    abort.dump_flight_recorder(str(tmp_path / "traces"), 2, 7)
    path = tmp_path / "traces" / "iter_2" / "_dump_7.json"
    assert json.loads(path.read_text()) == {"entries": []}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_no_file_without_a_recorder_or_with_too_much_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    holds(monkeypatch, None)
    abort.dump_flight_recorder(str(tmp_path), 0, 0)
    monkeypatch.setattr(abort, "MAX_DUMP_BYTES", 3)
    holds(monkeypatch, {"a": 1})
    abort.dump_flight_recorder(str(tmp_path), 0, 0)
    assert list(tmp_path.iterdir()) == []
    assert "holds 7 bytes, more than 3" in caplog.text
