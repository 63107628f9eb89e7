"""Verdicts for programs."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.results import result
from undaunted.chaos.checker.values import Defect
from undaunted.chaos.output.machine import to_json, to_junit
from undaunted.chaos.result import Result


def test_json_is_the_whole_result() -> None:
    whole = result()

    assert msgspec.json.decode(to_json(whole), type=Result) == whole


def test_junit_has_a_case_per_fault() -> None:
    suite = ET.fromstring(to_junit(result()))

    assert suite.attrib["tests"] == "4"
    assert (suite.attrib["failures"], suite.attrib["skipped"]) == ("1", "1")
    green, red, yellow, skipped = suite.findall("testcase")
    assert green.attrib["name"] == "kill-1: rank 1 is killed at step 12"
    assert green.attrib["classname"] == "undaunted chaos.kill"
    assert list(green) == []
    failure = red.find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "rng-not-restored"
    assert "torch.set_rng_state" in str(failure.text)
    assert yellow.find("failure") is None
    assert "SIGTERM did not end rank 0" in str(yellow.findtext("system-out"))
    reason = skipped.find("skipped")
    assert reason is not None
    assert reason.attrib["message"] == "no namespaces here"
    properties = {one.attrib["name"]: one.attrib["value"] for one in suite.iter("property")}
    assert properties["seed"] == "7"


@given(st.text(st.characters(), max_size=30))
def test_whatever_programs_write_both_stay_well_formed(text: str) -> None:
    whole = result()
    finding = Defect("k", "red", f"t{text}", text)
    readable = text.encode("utf-8", "replace").decode()
    verdicts = [
        msgspec.structs.replace(
            whole.verdicts[0], colour="red", findings=(finding,), skipped=readable
        )
    ]
    changed = msgspec.structs.replace(
        whole, verdicts=verdicts, argv=[text, "\udcff"], directory=text
    )

    suite = ET.fromstring(to_junit(changed))
    assert suite.find("testcase/failure") is not None

    spoken = Defect("k", "red", f"t{readable}", readable)
    verdicts = [msgspec.structs.replace(verdicts[0], findings=(spoken,))]
    decoded = msgspec.json.decode(to_json(msgspec.structs.replace(changed, verdicts=verdicts)))
    assert decoded["verdicts"][0]["findings"][0]["text"] == f"t{readable}"


def test_junit_of_a_fault_that_was_not_judged_is_skipped() -> None:
    [green] = [verdict for verdict in result().verdicts if verdict.colour == "green"]
    finding = Defect("did-not-happen", "yellow", "The fault did not happen.")
    unknown = msgspec.structs.replace(green, colour="yellow", findings=(finding,))

    suite = ET.fromstring(to_junit(msgspec.structs.replace(result(), verdicts=[unknown, green])))

    assert (suite.attrib["tests"], suite.attrib["skipped"]) == ("2", "1")
    skipped = [case.find("skipped") for case in suite.iter("testcase")]
    assert skipped[0] is not None
    assert skipped[0].attrib["message"] == finding.text
    assert skipped[1] is None
