"""Verdicts for programs: JSON, and JUnit XML as build servers read it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import msgspec

from undaunted.base.text import printable
from undaunted.chaos.output import words

if TYPE_CHECKING:
    from undaunted.chaos.checker.values import Defect, Judgement
    from undaunted.chaos.result import Result

_SUITE = "undaunted chaos"


def to_json(result: Result) -> str:
    """Return the result as one JSON object; ``result.Result`` tells its keys."""
    known = msgspec.structs.replace(
        result,
        argv=[_unicode(word) for word in result.argv],
        directory=_unicode(result.directory),
    )
    return msgspec.json.format(msgspec.json.encode(known), indent=2).decode() + "\n"


def to_junit(result: Result) -> str:
    """Return the result as JUnit XML: one test case per fault.

    Red is a failure; what was not judged is skipped, since nothing was tested.
    """
    suite = ET.Element(
        "testsuite",
        name=_SUITE,
        tests=str(len(result.verdicts)),
        failures=str(sum(verdict.colour == "red" for verdict in result.verdicts)),
        errors="0",
        skipped=str(sum(not verdict.judged for verdict in result.verdicts)),
        time=f"{result.seconds:.3f}",
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (
        ("seed", str(result.seed)),
        ("version", result.version),
        ("program", " ".join(result.argv)),
        ("directory", result.directory),
    ):
        ET.SubElement(properties, "property", name=name, value=printable(value))
    for verdict in result.verdicts:
        suite.append(_case(verdict))
    ET.indent(suite)
    text: str = ET.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _case(verdict: Judgement) -> ET.Element:
    seconds = f"{verdict.back_s or 0.0:.3f}"
    case = ET.Element(
        "testcase",
        classname=f"{_SUITE}.{verdict.fault.kind}",
        name=words.title(verdict),
        time=seconds,
    )
    reds = [finding for finding in verdict.findings if finding.severity == "red"]
    others = [finding for finding in verdict.findings if finding.severity != "red"]
    if not verdict.judged:
        why = verdict.skipped or others[0].text
        ET.SubElement(case, "skipped", message=printable(why))
    elif reds:
        failure = ET.SubElement(case, "failure", type=reds[0].key, message=printable(reds[0].text))
        failure.text = "\n\n".join(map(_said, reds))
    if others:
        ET.SubElement(case, "system-out").text = "\n\n".join(map(_said, others))
    return case


def _said(finding: Defect) -> str:
    return printable("\n".join(filter(None, (finding.text, finding.remedy))))


def _unicode(text: str) -> str:
    """Return a name of the file system, which may hold any bytes, as text."""
    return text.encode("utf-8", "backslashreplace").decode()
