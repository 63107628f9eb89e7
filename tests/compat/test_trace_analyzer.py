"""`attribution.trace_analyzer` under NVRx's names."""

from __future__ import annotations

import json
import pickle
from argparse import Namespace
from typing import TYPE_CHECKING

import pytest

from nvidia_resiliency_ext.attribution import trace_analyzer
from nvidia_resiliency_ext.attribution.base import AttributionState, NVRxAttribution
from nvidia_resiliency_ext.attribution.trace_analyzer import fr_attribution
from tests.attribution.flight.dumps import job
from undaunted.attribution.flight import recorder
from undaunted.cli.flight import main as flight

if TYPE_CHECKING:
    from pathlib import Path

HANGING = "hanging ranks: [2]"


@pytest.fixture
def dumps(tmp_path: Path) -> str:
    """Dumps of four ranks, of which rank 2 has not come; each as JSON and as a pickle."""
    for one in job(4):
        if one.rank != 2:
            one.call("0", state="scheduled")
        (tmp_path / f"_dump_{one.rank}").write_bytes(pickle.dumps(one.dump()))
        (tmp_path / f"rank_{one.rank}.json").write_text(json.dumps(one.dump()))
    return str(tmp_path)


def test_a_namespace_gets_a_text(dumps: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = Namespace(paths=[dumps], pattern="*.json", llm_analyze=False, verbose=True)
    assert trace_analyzer.CollectiveAnalyzer(args).run_sync(args) == HANGING
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == HANGING
    flight([dumps, "--nvrx"])
    assert capsys.readouterr().out == printed


def test_a_mapping_gets_a_pair(dumps: str) -> None:
    answer, state = trace_analyzer.CollectiveAnalyzer().run_sync({"fr_path": dumps})
    assert state is AttributionState.CONTINUE
    assert answer["hanging_ranks"] == HANGING
    head, row = answer["analysis_text"].splitlines()
    assert head == "PGID | Process Group Desc | Op Type | Size | Dtype | Missing Ranks"
    assert row == "0 | default_pg | all_reduce | [4] | Float | 2"


def test_paths_are_taken_alone_and_before_the_configured_ones(dumps: str, tmp_path: Path) -> None:
    analyzer = trace_analyzer.CollectiveAnalyzer({"fr_path": "/none", "pattern": "_dump_[0-9]"})
    assert analyzer.run_sync(dumps)[0]["hanging_ranks"] == HANGING
    files = [str(tmp_path / f"_dump_{rank}") for rank in range(2)]
    others = [str(tmp_path / f"_dump_{rank}") for rank in range(2, 4)]
    assert trace_analyzer.CollectiveAnalyzer().run_sync(files + others) == HANGING
    assert analyzer.run_sync({"input_data": files + others})[0]["hanging_ranks"] == HANGING


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "fr_path"),
        ({"fr_path": "/none"}, "/none"),
        ({"fr_path": "/none", "llm_analyze": True}, "llm_analyze"),
    ],
)
def test_what_cannot_be_done_is_said(args: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trace_analyzer.CollectiveAnalyzer(args).run_sync(None)


def test_as_a_program(
    dumps: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["fr_attribution", dumps])
    fr_attribution.main()
    assert capsys.readouterr().out.endswith(f"{HANGING}\n")
    monkeypatch.setattr("sys.argv", ["fr_attribution", "/none"])
    with pytest.raises(SystemExit) as ended:
        fr_attribution.main()
    assert ended.value.code == 2


def test_it_is_an_attribution() -> None:
    assert issubclass(trace_analyzer.CollectiveAnalyzer, NVRxAttribution)
    assert issubclass(trace_analyzer.TorchFRTraceCollector, trace_analyzer.TraceCollector)


def test_the_recorder_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = {"rank": 3, "entries": [], "pg_config": {}}
    monkeypatch.setattr(recorder, "dump", lambda: dump)
    directory = tmp_path / "iter_1"
    trace_analyzer.TorchFRTraceCollector(str(directory)).collect()
    trace_analyzer.TorchFRTraceCollector(str(directory), json=False).collect()
    assert json.loads((directory / "_dump_3.json").read_text()) == dump
    assert pickle.loads((directory / "_dump_3").read_bytes()) == dump
    assert sorted(one.name for one in directory.iterdir()) == ["_dump_3", "_dump_3.json"]
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in directory.iterdir())


def test_without_a_recorder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "dump", lambda: None)
    trace_analyzer.TorchFRTraceCollector(str(tmp_path)).collect()
    assert not list(tmp_path.iterdir())
    assert "TORCH_FR_BUFFER_SIZE" in caplog.text
