"""The result as lines for people, and as JSON. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.base.console import labelled
from undaunted.base.sizes import size
from undaunted.base.text import format_duration, printable
from undaunted.doctor.advice import WORST_FIRST, Advice
from undaunted.doctor.checks import CHECKS, absent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.base.console import Line
    from undaunted.doctor.facts import Facts
    from undaunted.doctor.self_test import SelfTest

SCHEMA = 1
_STYLES = {"fail": "bold red", "warn": "yellow", "info": "cyan"}
_LABELS = {"fail": "FAIL", "warn": "WARN", "info": "info"}
_INDENT = 6
_LONGEST = 100
_SHOWN_NODES = 8
_SAY_ENOUGH = frozenset({"L21"})  # in a note: the speed that was measured


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of the doctor; printed by ``--json``.

    Attributes:
        schema: goes up when a key changes its meaning; keys may be added without.
        version: of undaunted.
        findings: worst first.
        facts: what they were concluded from.
        nodes: names of the nodes that met, empty if none was to be met.
        self_test: None if it was not wanted.
    """

    schema: int = SCHEMA
    version: str = ""
    findings: list[Advice]
    facts: Facts
    nodes: list[str] = []
    self_test: SelfTest | None = None

    def count(self, severity: str) -> int:
        """Return how many findings are so bad."""
        return sum(finding.severity == severity for finding in self.findings)


def render(report: DoctorReport, *, width: int | None = None) -> list[Line]:
    """Return the report as lines.

    Args:
        report: what to show.
        width: columns of the terminal, None = 100.
    """
    columns = min(width or _LONGEST, _LONGEST)
    lines = [*_head(report, columns), []]
    for severity in WORST_FIRST[:2]:
        for finding in report.findings:
            if finding.severity == severity:
                lines += [*_full(finding, columns), []]
    notes = [finding for finding in report.findings if finding.severity == "info"]
    for finding in notes:
        lines += _short(finding, columns)
    if notes:
        lines.append([])
    lines += _fine(report, columns)
    if report.self_test is not None:
        lines += [[], *_self_test(report.self_test, columns)]
    return [*lines, [], _summary(report)]


def _head(report: DoctorReport, columns: int) -> Iterator[Line]:
    facts = report.facts
    known = [f"{name} {version}" for name, version in sorted(facts.versions.items())]
    if facts.cpus is not None:
        known.append(f"{facts.cpus} CPUs")
    if facts.memory is not None:
        known.append(size(facts.memory))
    if facts.gpus.count is not None:
        known.append(f"{facts.gpus.count} GPUs")
    yield [("undaunted doctor", "bold"), (f" on node {printable(facts.node)}", "")]
    yield from labelled("", printable(", ".join(known)), columns, text_style="dim")
    if report.nodes:
        others = len(report.nodes) - 1
        met = (
            f"met {len(report.nodes)} nodes: {_some(report.nodes)}"
            if others
            else "met no other node"
        )
        yield from labelled("", met, columns, text_style="dim")


def _some(nodes: list[str]) -> str:
    shown = ", ".join(printable(node) for node in nodes[:_SHOWN_NODES])
    more = len(nodes) - _SHOWN_NODES
    return f"{shown} and {more} more" if more > 0 else shown


def _full(finding: Advice, columns: int) -> Iterator[Line]:
    doubt = " (concluded; no source says exactly this)" if finding.unconfirmed else ""
    head = f"{finding.id}  {finding.subject}: {finding.found}"
    label, style = f"{_LABELS[finding.severity]}  ", _STYLES[finding.severity]
    yield from labelled(label, printable(head), columns, style=style, text_style="bold")
    for name, text in (
        ("wanted", finding.wanted),
        ("why", finding.why + doubt),
        ("do", finding.remedy),
        ("see", "; ".join(source for source in finding.sources if source != "proposal")),
    ):
        if text:
            yield from _named(name, text, columns, "dim" if name == "see" else "")


def _short(finding: Advice, columns: int) -> Iterator[Line]:
    text = f"{finding.id}  {finding.found}"
    if finding.why and finding.id not in _SAY_ENOUGH:
        text += f": {finding.why}"
    label, style = f"{_LABELS[finding.severity]}  ", _STYLES[finding.severity]
    yield from labelled(label, printable(text), columns, style=style)
    if finding.remedy and finding.id not in _SAY_ENOUGH:
        yield from _named("do", finding.remedy, columns)


def _named(name: str, text: str, columns: int, style: str = "") -> Iterator[Line]:
    label = " " * _INDENT + f"{name:<8}"
    return labelled(label, printable(text), columns, text_style=style)


def _fine(report: DoctorReport, columns: int) -> Iterator[Line]:
    """Name the subjects without a finding: they were looked at."""
    named = {finding.subject for finding in report.findings if finding.severity != "info"}
    named.update(absent(report.facts))
    fine = [subject for subject in CHECKS if subject not in named]
    if fine:
        yield from labelled("fine  ", ", ".join(fine), columns, style="green")


def _self_test(test: SelfTest, columns: int) -> Iterator[Line]:
    yield [(f"self-test, {format_duration(test.seconds)}:", "bold")]
    for step in test.steps:
        mark, style = ("ok    ", "green") if step.ok else ("FAIL  ", "bold red")
        yield from labelled(mark, printable(f"{step.name}: {step.text}"), columns, style=style)
    for line in test.output.splitlines():
        yield [(f"      | {printable(line)}", "dim")]
    if test.directory:
        yield [(f"      left in {test.directory}", "")]


def _summary(report: DoctorReport) -> Line:
    failures, warnings = report.count("fail"), report.count("warn")
    text = f"{_counted(failures, 'failure')}, {_counted(warnings, 'warning')}"
    if failures:
        return [(f"{text}: repair the failures before you train here", "bold red")]
    if warnings:
        return [(f"{text}: training will work here, see the warnings", "yellow")]
    return [(f"{text}: this is a good place to train", "green")]


def _counted(count: int, name: str) -> str:
    return f"{count or 'no'} {name}{'' if count == 1 else 's'}"
