from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from undaunted.doctor.known_issues import FEATURES, known_issues, read_issues
from undaunted.doctor.versions import parse_range

if TYPE_CHECKING:
    from undaunted.doctor import known_issues as module

ISSUES = known_issues()
ALL = [*ISSUES.versions, *ISSUES.variables, *ISSUES.settings, *ISSUES.messages]


def test_ids_are_unique_and_say_their_kind() -> None:
    ids = [issue.id for issue in ALL]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"V\d\d", issue.id) for issue in ISSUES.versions)
    assert all(re.fullmatch(r"E\d\d", issue.id) for issue in ISSUES.variables)
    assert all(re.fullmatch(r"[LND]\d\d", issue.id) for issue in ISSUES.settings)
    assert all(re.fullmatch(r"M\d\d", issue.id) for issue in ISSUES.messages)


@pytest.mark.parametrize("issue", ALL, ids=lambda issue: issue.id)
def test_each_row_is_complete(issue: module.Issue) -> None:
    assert issue.why
    assert issue.remedy
    assert issue.sources
    assert set(issue.features) <= set(FEATURES)
    if issue.unconfirmed:
        assert issue.severity != "fail", "what no source says must not fail"


@pytest.mark.parametrize("issue", ISSUES.versions, ids=lambda issue: issue.id)
def test_ranges_can_be_read(issue: module.VersionIssue) -> None:
    assert issue.ranges
    for text in issue.ranges:
        parse_range(text)


@pytest.mark.parametrize("issue", ISSUES.variables, ids=lambda issue: issue.id)
def test_cases_make_sense(issue: module.VariableIssue) -> None:
    order = ("info", "warn", "fail")
    for case in issue.cases:
        assert order.index(case.severity) <= order.index(issue.severity)
        assert set(case.variables) <= set(issue.variables)
        assert set(case.features) | set(case.not_for) <= set(FEATURES)
        conditions = (case.values, case.other_than, case.starts, case.contains, case.is_set)
        assert any([*conditions, case.unset, case.below is not None, case.above is not None])


def test_no_text_of_two_messages() -> None:
    texts = [text for issue in ISSUES.messages for text in issue.texts]
    assert len(set(texts)) == len(texts)
    assert all(text.strip() for text in texts)


def test_settings_by_id() -> None:
    assert ISSUES.setting("L01").what == "size and free space of /dev/shm"
    with pytest.raises(KeyError):
        ISSUES.setting("L99")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "versions: []",
        "{",
        "versions: []\nvariables: []\nsettings: []\nmessages: []\nother: 1\n",
    ],
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^known_issues\.yaml: "):
        read_issues(text)
