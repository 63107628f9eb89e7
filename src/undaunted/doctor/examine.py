"""The control flow of `undaunted doctor`: gather, judge, meet, test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import structs

from undaunted.base.text import one_line
from undaunted.doctor.advice import Advice, ordered
from undaunted.doctor.checks import judge
from undaunted.doctor.gather import gather, probes
from undaunted.doctor.known_issues import known_issues
from undaunted.doctor.meeting import meet
from undaunted.doctor.probes import Children
from undaunted.doctor.report import DoctorReport
from undaunted.doctor.self_test import SelfTest, run_self_test

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.doctor.facts import Asked
    from undaunted.doctor.gather import Places
    from undaunted.doctor.known_issues import KnownIssues
    from undaunted.doctor.meeting import Meeting


def examine(
    places: Places,
    asked: Asked,
    *,
    version: str,
    meeting: Meeting | None,
    self_test: bool,
    keep: bool,
    say: Callable[[str], None],
) -> DoctorReport:
    """Look at everything, and return what was found.

    Args:
        places: where to look.
        asked: what the user wants to do here.
        version: of undaunted.
        meeting: of the doctors of all nodes, None = this node is looked at alone.
        self_test: run a job for a test as well.
        keep: leave its directory.
        say: is called with a line when something begins that takes its time.
    """
    issues = known_issues()
    with Children() as children:
        say("looking at this node ...")
        facts = gather(places.node, probes(places, issues, children))
    facts = structs.replace(facts, versions=facts.versions | {"undaunted": version})
    findings = judge(facts, asked, issues)
    nodes: list[str] = []
    if meeting is not None:
        say(f"meeting {meeting.nodes} nodes at {meeting.endpoint} ...")
        verdict = meet(meeting, facts, version, issues)
        nodes = verdict.nodes
        findings += verdict.findings
    test = None
    if self_test:
        say("self-test: a job of two ranks is killed, hung and recovers ...")
        test, failed = _tested(issues, keep=keep)
        findings += failed
    return DoctorReport(
        version=version, findings=ordered(findings), facts=facts, nodes=nodes, self_test=test
    )


def _tested(issues: KnownIssues, *, keep: bool) -> tuple[SelfTest | None, list[Advice]]:
    """Make the self-test; one that cannot be made is a finding."""
    issue = issues.setting("D02")
    try:
        test = run_self_test(os.environ, keep=keep)
    except Exception as error:  # noqa: BLE001 - what else was found must be told
        return None, [issue.finding("self-test", f"cannot be made: {one_line(str(error))}")]
    failed = [step for step in test.steps if not step.ok]
    found = "; ".join(f"{step.name}: {step.text}" for step in failed)
    return test, [issue.finding("self-test", found, wanted=issue.wanted)] if failed else []
