from __future__ import annotations

import json
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


def test_nothing_to_say() -> None:
    shown = text()
    assert shown.startswith("undaunted doctor on node n1\ntorch 2.9, 2 CPUs\n")
    assert shown.endswith("no failures, no warnings: this is a good place to train")
    assert "fine  versions, environment variables, shared memory, memory" in shown
    assert "GPUs" not in shown
    assert "GPUs" in text(facts=Facts(gpus=Gpus(present=True)))


def test_a_failure_says_all_there_is() -> None:
    shown = text(finding(wanted="1 GiB free"))
    assert "FAIL  L01  shared memory: /dev/shm has 64 MiB free of 64 MiB\n" in shown
    for label in ("wanted  1 GiB free", "why     NCCL and", "do      docker:", "see     NCCL user"):
        assert f"      {label}" in shown
    assert "proposal" not in shown
    assert shown.endswith("1 failure, no warnings: repair the failures before you train here")
    assert "shared memory" not in shown.partition("fine  ")[2]


def test_notes_are_short() -> None:
    shown = text(finding(severity="info"))
    assert "info  L01  /dev/shm has 64 MiB free of 64 MiB: NCCL and" in shown
    assert "      do      docker: --shm-size" in shown
    assert not any(f"      {label} " in shown for label in ("wanted", "why", "see"))
    assert "shared memory" in shown.partition("fine  ")[2]


def test_a_measured_speed_needs_no_remedy() -> None:
    fast = ISSUES.setting("L21").finding("storage", "/ckpt: 1.2 GiB/s written", "info")
    assert "info  L21  /ckpt: 1.2 GiB/s written\n\n" in text(fast)


def test_doubt_is_told() -> None:
    shown = text(finding(severity="warn", unconfirmed=True, why="it may hang"))
    assert "why     it may hang (concluded; no source says exactly this)\n" in shown


def test_lines_fit_the_terminal() -> None:
    shown = text(finding(), finding(severity="info"), width=60)
    *lines, _ = shown.splitlines()
    assert max(map(len, lines)) <= 60


def test_terminals_are_safe() -> None:
    shown = text(finding(found="\x1b[2J"), facts=Facts(node="\x1b]0;n1", versions={"a": "\x07"}))
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_the_self_test() -> None:
    steps = (
        Step("start", ok=True, text="two ranks ran"),
        Step("end", ok=False, text="exit code 1"),
    )
    test = SelfTest(steps=steps, seconds=6.1, output="last words", directory="/tmp/x")
    shown = text(self_test=test)
    assert "self-test, 6.1 s:\nok    start: two ranks ran\nFAIL  end: exit code 1\n" in shown
    assert "      | last words\n      left in /tmp/x\n" in shown


def test_nodes_that_met() -> None:
    assert "met 9 nodes: n0, n1, n2, n3, n4, n5, n6, n7 and 1 more" in text(
        nodes=[f"n{number}" for number in range(9)]
    )
    assert "met no other node\n" in text(nodes=["n0"])


def test_json() -> None:
    report = DoctorReport(version="0.1.0", findings=[finding()], facts=Facts(node="n1"))
    found = json.loads(msgspec.json.encode(report))
    assert found["schema"] == 1
    assert found["findings"][0]["id"] == "L01"
    assert found["facts"]["node"] == "n1"
    assert found["self_test"] is None
