from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from undaunted.doctor.known_issues import FEATURES, known_issues, read_issues
from undaunted.doctor.versions import parse_range, parse_version

if TYPE_CHECKING:
    from undaunted.doctor import known_issues as module

ISSUES = known_issues()
ALL = [*ISSUES.versions, *ISSUES.variables, *ISSUES.settings]


def test_ids_are_unique_and_say_their_kind() -> None:
    ids = [issue.id for issue in ALL]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"V\d\d", issue.id) for issue in ISSUES.versions)
    assert all(re.fullmatch(r"E\d\d", issue.id) for issue in ISSUES.variables)
    assert all(re.fullmatch(r"[LND]\d\d", issue.id) for issue in ISSUES.settings)


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
        "versions: []\nvariables: []\nsettings: []\nother: 1\n",
    ],
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^known_issues\.yaml: "):
        read_issues(text)


# Of each range the versions at its ends, as the sources have them: affected, and not.
ENDS = {
    "V01": ("2.28.3 2.28.8", "2.28.2 2.28.9"),
    "V02": ("2.26.1", "2.26.2"),
    "V03": ("2.18 2.18.6 2.19.0", "2.17.9 2.19.1"),
    "V04": ("2.16", "2.15.5"),
    "V05": ("2.21 2.23.4", "2.20.5 2.24.1"),
    "V06": ("2.28.8", "2.28.9"),
    "V07": ("2.28.9 2.29.2", "2.28.8 2.29.3"),
    "V08": ("2.31.2", "2.30.7"),
    "V09": ("2.27.3", "2.26.6"),
    "V10": ("2.27.7", "2.27.6 2.28.3"),
    "V11": ("2.27.2", "2.27.3"),
    "V12": ("2.25.1 2.27.2", "2.24.3 2.27.3"),
    "V13": ("2.27.5 2.30.4", "2.27.3 2.30.7"),
    "V14": ("2.28.3 2.28.6", "2.27.7 2.28.7"),
    "V15": ("2.28.6", "2.28.7"),
    "V16": ("2.30.7", "2.31.2"),
    "V17": ("2.23.4", "2.24.1"),
    "V18": ("2.7.1+cu126", "2.8.0"),
    "V19": ("2.7.1+cu126", "2.8.0"),
    "V20": ("2.7.1+cu126", "2.7.0 2.8.0"),
    "V21": ("2.13.0+cpu", ""),
    "V22": ("2.13.0+cpu", "2.12.1"),
    "V23": ("2.6.0", "2.7.0"),
    "V24": ("2.10.0.dev20251101", "2.9.1 2.10.0"),
    "V25": ("2.13.0", ""),
    "V26": ("2.13.0", ""),
    "V27": ("2.6.0", "2.5.1"),
    "V28": ("2.4.0 2.4.1", "2.3.1 2.5.0"),
    "V29": ("2.2.0", "2.3.0"),
    "V30": ("0.15.0", ""),
    "V31": ("525.60.13 525.85.12", "515.105.01 525.105.17"),
    "V32": ("565.57.01", "570.86.10"),
    "V33": ("3.12.9", "3.13.0"),
    "V34": ("3.14.0", "3.13.5"),
    "V35": ("5.4.0-1023-aws", "5.6.0"),
    "V36": ("3.5.0 3.5.2", "3.4.27 3.5.3"),
    "V37": ("2.5.0", "2.4.0"),
}


@pytest.mark.parametrize("issue", ISSUES.versions, ids=lambda issue: issue.id)
def test_ends_of_ranges(issue: module.VersionIssue) -> None:
    ranges = [parse_range(text) for text in issue.ranges]
    for words, inside in zip(ENDS[issue.id], (True, False), strict=True):
        for word in words.split():
            assert any(one.includes(parse_version(word)) for one in ranges) is inside, word
