"""What a result says of all its verdicts together."""

from __future__ import annotations

import pytest
from msgspec import structs

from tests.chaos.results import result
from undaunted.chaos.checker.values import Defect


def test_a_fault_that_was_judged_is_enough() -> None:
    assert result().judged
    assert result().red


def test_faults_that_were_skipped_are_not_judged() -> None:
    skipped = [verdict for verdict in result().verdicts if verdict.colour == "skipped"]

    assert skipped
    assert not structs.replace(result(), verdicts=skipped).judged
    assert not structs.replace(result(), verdicts=[]).judged


@pytest.mark.parametrize(
    "key", ["did-not-happen", "not-made", "nothing-torn", "sigterm-too-late", "identity-unknown"]
)
def test_findings_with_which_nothing_is_known(key: str) -> None:
    finding = Defect(key, "yellow", "why")
    [green] = [verdict for verdict in result().verdicts if verdict.colour == "green"]
    unknown = structs.replace(green, colour="yellow", findings=(finding,))

    assert not structs.replace(result(), verdicts=[unknown]).judged
    assert structs.replace(result(), verdicts=[unknown, green]).judged


def test_red_is_known_whatever_else_is_not() -> None:
    [red] = [verdict for verdict in result().verdicts if verdict.colour == "red"]
    more = (*red.findings, Defect("identity-unknown", "yellow", "why"))

    assert structs.replace(red, findings=more).judged
