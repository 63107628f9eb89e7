"""Dumps of the Flight Recorder."""

from __future__ import annotations

import json
import stat
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from undaunted.inprocess.communication import flight_recorder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"TORCH_FR_BUFFER_SIZE": "2000"}, True),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": " 10 "}, True),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, False),
        ({"TORCH_FR_BUFFER_SIZE": "many"}, False),
        ({"TORCH_FR_BUFFER_SIZE": "-1"}, False),
    ],
)
def test_whether_it_records(environment: dict[str, str], expected: bool) -> None:
    assert flight_recorder.is_recording(environment) == expected


def bindings(monkeypatch: pytest.MonkeyPatch, **functions: bytes) -> None:
    made = {
        name: lambda includeCollectives, onlyActive, records=records: records  # noqa: N803
        for name, records in functions.items()
    }
    monkeypatch.setitem(
        sys.modules,
        "torch._C._distributed_c10d",
        SimpleNamespace(**made),  # type: ignore[arg-type]
    )


def test_one_file_for_each_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings(monkeypatch, _dump_fr_trace_json=b'{"entries": []}')
    flight_recorder.dump(str(tmp_path / "traces"), 2, 7, {"gloo"})
    path = tmp_path / "traces" / "iter_2" / "_dump_7.json"
    assert json.loads(path.read_text()) == {"entries": []}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_nccl_has_a_recorder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings(monkeypatch, _dump_fr_trace_json=b"1", _dump_nccl_trace_json=b"2")
    for rank, backends in enumerate([{"gloo"}, {"gloo", "nccl"}]):
        flight_recorder.dump(str(tmp_path), 0, rank, backends)
    assert (tmp_path / "iter_0" / "_dump_0.json").read_text() == "1"
    assert (tmp_path / "iter_0" / "_dump_1.json").read_text() == "2"


def test_no_file_without_a_recorder_or_with_too_much_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bindings(monkeypatch)
    flight_recorder.dump(str(tmp_path), 0, 0, {"gloo"})
    monkeypatch.setattr(flight_recorder, "MAX_BYTES", 3)
    bindings(monkeypatch, _dump_fr_trace_json=b"1234")
    flight_recorder.dump(str(tmp_path), 0, 0, {"gloo"})
    assert list(tmp_path.iterdir()) == []
    assert "holds 4 bytes, more than 3" in caplog.text
