from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution import error_file
from undaunted.attribution.error_file import ErrorReport
from undaunted.progress.snapshot import ErrorRecord

if TYPE_CHECKING:
    from pathlib import Path

REPORT = ErrorReport("ValueError: bad ü", "Traceback ...\nValueError: bad ü\n", 1_700_000_000)


def test_written_files_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    error_file.write(path, REPORT)
    assert error_file.read(path) == REPORT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["error.json"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text("x" * 10_000)
    error_file.write(path, REPORT)
    assert error_file.read(path) == REPORT


def test_a_missing_directory_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        error_file.write(tmp_path / "none" / "error.json", REPORT)
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        error_file.write(tmp_path / "taken", REPORT)
    assert os.listdir(tmp_path) == ["taken"]


@given(st.text(min_size=1), st.text(), st.integers(0, 2**53))
def test_every_report_survives(message: str, traceback: str, wall_s: int) -> None:
    report = ErrorReport(message, traceback, wall_s)
    assert error_file.decode(error_file.encode(report)) == report


@pytest.mark.parametrize(
    ("content", "report"),
    [
        ('{"message": "plain", "timestamp": 17}', ErrorReport("plain", wall_s=17)),
        ('{"message": "plain"}', ErrorReport("plain")),
        ('"bare text"', ErrorReport("bare text")),
        ('{"message": {"message": "m", "errorCode": 3}}', ErrorReport("m")),
        ('{"message": {"message": "m", "extraInfo": null}}', ErrorReport("m")),
        (
            '{"message": {"extraInfo": {"py_callstack": "T\\nKeyError: 1\\n", "timestamp": "x"}}}',
            ErrorReport("KeyError: 1", "T\nKeyError: 1\n"),
        ),
        ('{"message": {"message": 3}}', None),
        ('{"message": ""}', None),
        ('{"other": 1}', None),
        ("[1]", None),
        ("", None),
        ('{"message": {"mess', None),
        ("[" * 100_000, None),
    ],
)
def test_other_forms_and_garbage(content: str, report: ErrorReport | None) -> None:
    assert error_file.decode(content) == report


@given(st.recursive(st.none() | st.integers() | st.floats() | st.text(), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["message", "extraInfo", "timestamp", "py_callstack"]), inner, max_size=4
    )
)))  # fmt: skip
def test_any_json_is_read_or_ignored(value: object) -> None:
    report = error_file.decode(json.dumps(value))
    assert report is None or report.message


def test_unreadable_files(tmp_path: Path) -> None:
    assert error_file.read(tmp_path / "none") is None
    assert error_file.read(tmp_path) is None
    assert error_file.read("a\0b") is None
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert error_file.read(fifo) is None  # without waiting for a writer
    large = tmp_path / "large"
    large.write_text(json.dumps({"message": "x" * error_file.MAX_BYTES}))
    assert error_file.read(large) is None
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe{")
    assert error_file.read(binary) is None


def test_from_a_page() -> None:
    record = ErrorRecord(at_ns=5, type="KeyError", message="'x'", traceback="T", pid=1)
    assert error_file.from_record(record, wall_s=9) == ErrorReport("KeyError: 'x'", "T", 9)
    empty = ErrorRecord(at_ns=5, type="KeyError", message="", traceback="", pid=1)
    assert error_file.from_record(empty, wall_s=9).message == "KeyError"


@pytest.mark.torch
def test_torch_reads_ours_and_we_read_torchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"

    error_file.write(ours, REPORT)
    failure = errors.ProcessFailure(local_rank=0, pid=7, exitcode=1, error_file=str(ours))
    assert failure.timestamp == REPORT.wall_s
    assert failure.message["message"] == REPORT.message
    shown = errors.ChildFailedError("train.py", {0: failure}).format_msg()
    assert "ValueError: bad ü" in shown

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(theirs))

    @errors.record
    def main() -> None:
        raise LookupError("shard 9 is missing")

    with pytest.raises(LookupError):
        main()
    report = error_file.read(theirs)
    assert report is not None
    assert report.message == "LookupError: shard 9 is missing"
    assert "in main" in report.traceback
    assert report.wall_s > 1_700_000_000
