from __future__ import annotations

import io
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.cli import doctor as module
from undaunted.cli.doctor import show
from undaunted.cli.explain import main as explain
from undaunted.coordinator.wire.address import Address
from undaunted.doctor import examine as examine_module
from undaunted.doctor.advice import Advice
from undaunted.doctor.facts import Facts
from undaunted.doctor.report import DoctorReport

if TYPE_CHECKING:
    from pathlib import Path


class Examined:
    """Stands in for the examination; keeps what was asked."""

    def __init__(self, *findings: Advice) -> None:
        self.findings = list(findings)
        self.asked: dict[str, Any] = {}

    def __call__(self, places: Any, asked: Any, **more: Any) -> DoctorReport:
        self.asked = {"places": places, "asked": asked, **more}
        return DoctorReport(version="0.1.0", findings=self.findings, facts=Facts(node="n1"))


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Examined:
    found = Examined()
    monkeypatch.setattr(examine_module, "examine", found)
    for name in ("SLURMD_NODENAME", "PYTHON_EXEC", "UNDAUNTED_TOKEN", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_nothing_asked(examined: Examined, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert module.main([]) == 0
    assert "this is a good place to train" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before
    assert examined.asked["self_test"] is True
    assert examined.asked["meeting"] is None


def test_everything_asked(examined: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDAUNTED_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    words = (
        "--for inprocess,shrink --nproc-per-node 8 --nnodes 4 --checkpoint-size 80GB "
        "--checkpoint-dir /ckpt --log-dir /logs --hosts n1,n2:7,[::1]:8,fe80::1 "
        "--rdzv-endpoint n0:29400 --join-timeout 5m --coordinator-store etcd://e1,e2:7 "
        "--no-self-test --keep"
    )
    assert module.main(words.split()) == 0
    places, asked = examined.asked["places"], examined.asked["asked"]
    assert places.node == "node7"
    assert places.directories == (("/ckpt", "checkpoints"), ("/logs", "logs"))
    assert places.hosts == (
        Address("n1", 29400),
        Address("n2", 7),
        Address("::1", 8),
        Address("fe80::1", 29400),
    )
    assert places.etcd == (Address("e1", 2379), Address("e2", 7))
    assert asked.features == {"inprocess", "shrink"}
    assert (asked.nproc_per_node, asked.nnodes, asked.port) == (8, 4, 29400)
    assert asked.checkpoint_bytes == 80 * 10**9
    meeting = examined.asked["meeting"]
    assert (meeting.endpoint, meeting.nodes, meeting.join_s) == ("n0:29400", 4, 300.0)
    assert (examined.asked["self_test"], examined.asked["keep"]) == (False, True)
    assert places.stores == {}, "the meeting sees to it"


def test_where_ranks_will_meet(examined: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "n3")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert module.main(["--rdzv-endpoint", "n0:29400"]) == 0
    endpoints = {"--rdzv-endpoint": Address("n0", 29400), "MASTER_ADDR": Address("n3", 29500)}
    assert examined.asked["places"].stores == endpoints
    for port in ("", "x", "70000", "-1"):
        monkeypatch.setenv("MASTER_PORT", port)
        assert module.main([]) == 0
        assert examined.asked["places"].stores == {"MASTER_ADDR": Address("n3", 0)}


def test_a_current_directory_that_is_gone(
    examined: Examined,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert module.main(["--checkpoint-dir", "ckpt"]) == 2
    assert "ckpt: the current directory is gone (" in capsys.readouterr().err
    assert module.main(["--checkpoint-dir", "/ckpt"]) == 0
    assert examined.asked["places"].directories == (("/ckpt", "checkpoints"),)


def test_failures_and_json(examined: Examined, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": "L01", "subject": "shared memory", "found": "little"}
    examined.findings = [Advice(severity="warn", **row)]
    assert module.main([]) == 0
    examined.findings = [Advice(severity="fail", **row)]
    assert module.main([]) == 1
    capsys.readouterr()
    assert module.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["severity"] == "fail"


def test_a_log_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("OSError: [Errno 28] No space left on device\n")
    assert explain([str(log)]) == 0
    page = capsys.readouterr().out
    assert "M43" in page
    assert module.main(["--read-log", str(log)]) == 0
    assert capsys.readouterr().out == page
    assert module.main(["--read-log", str(log), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["rounds"][0]["findings"]
    assert (finding["cause"], finding["message"]) == ("disk_full", "M43")


def test_a_reader_that_has_enough(
    examined: Examined, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def broken(lines: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("undaunted.base.console.show", broken)
    with (tmp_path / "out").open("w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert module.main([]) == 0


def test_sigterm_ends_what_was_started() -> None:
    with pytest.raises(SystemExit) as ended:
        module._terminated(15, None)
    assert ended.value.code == 143


def lines(*, width: int | None = None) -> list[list[tuple[str, str]]]:
    return [[("FAIL  ", "bold red"), (f"{width} \u2713 ", "")]]


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show(None, lines, as_json=False)
    assert capsys.readouterr().out == "FAIL  None \u2713\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    show({"a": 1}, lines, as_json=True)
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(None, lines, as_json=False)
    assert "\x1b[1;31mFAIL  \x1b[0m77 \u2713" in terminal.getvalue()


def test_any_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        show(None, lines, as_json=False)
    assert (tmp_path / "out").read_text() == "FAIL  None \\u2713\n"


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, os.strerror(28))

    full: Any = Full()
    monkeypatch.setattr(sys, "stdout", full)
    show(None, lines, as_json=False)
    assert "standard output: No space left on device" in capsys.readouterr().err
