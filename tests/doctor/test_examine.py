from __future__ import annotations

import sys
from typing import Any

import pytest

from undaunted.doctor import examine as module
from undaunted.doctor.advice import Advice
from undaunted.doctor.examine import examine
from undaunted.doctor.facts import Asked, Facts
from undaunted.doctor.gather import Places
from undaunted.doctor.meeting import Meeting
from undaunted.doctor.meeting_messages import MeetingVerdict
from undaunted.doctor.self_test import SelfTest, Step


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gather", lambda node, todo: Facts(node=node, oom_score_adj=5))


def examined(**changes: Any) -> Any:
    said: list[str] = []
    places = Places(node="n1", python=sys.executable)
    given: dict[str, Any] = {"meeting": None, "self_test": False, "keep": False, "say": said.append}
    report = examine(places, Asked(), version="0.1.0", **given | changes)
    return report, said


def test_this_node_alone() -> None:
    report, said = examined()
    assert [finding.id for finding in report.findings] == ["L11"]
    assert report.facts.versions == {"undaunted": "0.1.0"}
    assert said == ["looking at this node ..."]


def test_a_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Advice(id="N02", severity="fail", subject="nodes of the job", found="torch")
    monkeypatch.setattr(module, "meet", lambda *args: MeetingVerdict(["n1", "n2"], [found]))
    meeting = Meeting(endpoint="n1:29400", nodes=2, token=b"", join_s=1.0)
    report, said = examined(meeting=meeting)
    assert report.nodes == ["n1", "n2"]
    assert [finding.id for finding in report.findings] == ["N02", "L11"]
    assert said[-1] == "meeting 2 nodes at n1:29400 ..."


def test_a_self_test_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    test = SelfTest(steps=(Step("end", ok=False, text="exit code 1"),), seconds=1.0)
    monkeypatch.setattr(module, "run_self_test", lambda environ, keep: test)
    report, _ = examined(self_test=True)
    assert report.self_test is test
    assert report.findings[0].id == "D02"
    assert report.findings[0].found == "end: exit code 1"


def test_a_self_test_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(environ: Any, keep: bool) -> SelfTest:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "run_self_test", broken)
    report, _ = examined(self_test=True)
    assert report.self_test is None
    assert "No space left on device" in report.findings[0].found
