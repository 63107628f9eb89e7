"""`attribution.log_analyzer` under NVRx's names."""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import pytest

from nvidia_resiliency_ext.attribution import log_analyzer
from nvidia_resiliency_ext.attribution.base import AttributionState, NVRxAttribution
from nvidia_resiliency_ext.attribution.log_analyzer import nvrx_logsage

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = [  # as the specification lists them
    "raw_text",
    "auto_resume",
    "auto_resume_explanation",
    "attribution_text",
    "checkpoint_saved_flag",
    "action",
    "primary_issues",
    "secondary_issues",
]
OUT_OF_MEMORY = (
    "iteration 1 loss 2.0\n"
    "saved checkpoint /ckpt/1\n"
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
TIME_LIMIT = (
    "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
)


def answer(path: Path, text: str, **more: Any) -> tuple[Any, Any]:
    path.write_text(text)
    [item], state = log_analyzer.NVRxLogAnalyzer(more).run_sync({"log_path": str(path)})
    return item, state


def test_names_are_nvrxs() -> None:
    assert issubclass(log_analyzer.NVRxLogAnalyzer, NVRxAttribution)
    item = log_analyzer.RawAnalysisResultItem
    assert [one.name for one in dataclasses.fields(item)] == FIELDS


def test_a_failure_is_attributed_without_a_language_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    item, state = answer(tmp_path / "log", OUT_OF_MEMORY, model="m", base_url="http://x")
    assert state is AttributionState.CONTINUE
    assert (item.auto_resume, item.action) == ("RESTART IMMEDIATE", "RESTART")
    assert item.primary_issues == ["gpu_out_of_memory"]
    assert "[3]" in item.attribution_text
    assert "CUDA out of memory" in item.attribution_text
    assert item.checkpoint_saved_flag
    assert capsys.readouterr().out == item.raw_text + "\n"


@pytest.mark.parametrize(
    ("text", "verdict", "action"),
    [
        ("", "NO LOGS", "UNKNOWN"),
        ("iteration 1 loss 2.0\n", "ERRORS NOT FOUND", "CONTINUE"),
        (TIME_LIMIT, "STOP - DONT RESTART IMMEDIATE", "STOP"),
    ],
)
def test_verdicts(tmp_path: Path, text: str, verdict: str, action: str) -> None:
    item, state = answer(tmp_path / "log", text)
    assert (item.auto_resume, item.action) == (verdict, action)
    assert state is (AttributionState.STOP if action == "STOP" else AttributionState.CONTINUE)
    assert not item.checkpoint_saved_flag


def test_what_would_come_again_on_all_ranks_stops(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]: {line}\n"
        for rank in range(4)
        for line in (
            "Traceback (most recent call last):",
            '  File "train.py", line 3, in <module>',
            "    import nothing",
            "ModuleNotFoundError: No module named 'nothing'",
        )
    ]
    item, _ = answer(tmp_path / "log", "WORLD_SIZE=4\n" + "".join(lines))
    assert item.action == "STOP"
    assert item.primary_issues == ["program_error"]


def test_paths_are_taken_as_configured_and_as_given(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(OUT_OF_MEMORY)
    for configured, given in [
        (Namespace(log_path=str(path)), None),
        ({"log_path": "/none"}, path),
        (None, [str(path)]),
        (None, {"input_data": [str(path)]}),
    ]:
        [item], _ = log_analyzer.NVRxLogAnalyzer(configured).run_sync(given)
        assert item.action == "RESTART"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "no log was named"),
        ("/none/log", "log_path is '/none/log'"),
        (7, "log_path is 7"),
        (["a", "b"], "log_path is "),
    ],
)
def test_bad_input_is_named(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        log_analyzer.NVRxLogAnalyzer().run_sync(given)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    path.write_text(OUT_OF_MEMORY)
    monkeypatch.setattr(sys, "argv", ["nvrx_logsage", "--log-path", str(path)])
    nvrx_logsage.main()
    assert capsys.readouterr().out.startswith("RESTART IMMEDIATE\n")
    monkeypatch.setattr(sys, "argv", ["nvrx_logsage", "--log-path", "/none/log"])
    with pytest.raises(SystemExit):
        nvrx_logsage.main()
    assert "/none/log" in capsys.readouterr().err
