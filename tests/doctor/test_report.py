from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.doctor.facts import Facts, Gpus
from undaunted.doctor.known_issues import known_issues
from undaunted.doctor.report import DoctorReport, render
from undaunted.doctor.self_test import SelfTest, Step

if TYPE_CHECKING:
    from undaunted.doctor.advice import Advice

ISSUES = known_issues()


def finding(**changes: Any) -> Advice:
    made = ISSUES.setting("L01").finding("shared memory", "/dev/shm has 64 MiB free of 64 MiB")
    return msgspec.structs.replace(made, **changes)


def text(*findings: Advice, width: int | None = None, **more: Any) -> str:
    facts = more.pop("facts", Facts(node="n1", versions={"torch": "2.9"}, cpus=2))
    report = DoctorReport(version="0.1.0", findings=list(findings), facts=facts, **more)
    return "\n".join("".join(piece for piece, _ in line) for line in render(report, width=width))


def test_reports(golden: Any) -> None:
    steps = (
        Step("start", ok=True, text="two ranks ran"),
        Step("end", ok=False, text="exit code 1"),
    )
    findings = (
        finding(wanted="1 GiB free"),
        finding(severity="warn", unconfirmed=True, why="it may hang"),
        finding(severity="info"),
        ISSUES.setting("L21").finding("storage", "/ckpt: 1.2 GiB/s written", "info"),
    )
    shown = [
        text(),
        text(
            facts=Facts(node="n1", memory=64 << 30, gpus=Gpus(present=True, count=8)), nodes=["n0"]
        ),
        text(
            *findings,
            nodes=[f"n{number}" for number in range(9)],
            self_test=SelfTest(steps=steps, seconds=6.1, output="last words", directory="/tmp/x"),
        ),
    ]
    golden(Path(__file__).with_name("reports.txt"), "\n\n".join(shown) + "\n")


def test_lines_fit_the_terminal() -> None:
    shown = text(finding(), finding(severity="info"), width=60)
    *lines, _ = shown.splitlines()
    assert max(map(len, lines)) <= 60


def test_terminals_are_safe() -> None:
    shown = text(finding(found="\x1b[2J"), facts=Facts(node="\x1b]0;n1", versions={"a": "\x07"}))
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_json() -> None:
    report = DoctorReport(version="0.1.0", findings=[finding()], facts=Facts(node="n1"))
    found = json.loads(msgspec.json.encode(report))
    assert found["schema"] == 1
    assert found["findings"][0]["id"] == "L01"
    assert found["facts"]["node"] == "n1"
    assert found["self_test"] is None
