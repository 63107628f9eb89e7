"""Literals that a line needs for an expression to fit it."""

from __future__ import annotations

import pytest

from tests.attribution.reports import PARTS, reports
from undaunted.attribution.logs.literals import Literals
from undaunted.attribution.logs.rules import rules, template


@pytest.mark.parametrize(
    ("expression", "fits", "lacks"),
    [
        (r"link \d+ is down", "linkisdown", "link:down"),
        (r"\befa\b.{0,60}(?:error|fail\w*)", "[efa]ithasfailed", "[default]:step"),
        (r"(?:ecc )?memory (?:error|fault)", "memoryfault", "eccerror"),
        (r"uncorrect(?:able|ed)|dbe\b", "theuncorrected", "correctable"),
        (r"colou?r", "color", "coler"),
        (r"no{2,3}n", "noon", "nn"),  # at least one
        (r"x+\.y(?!z)", "x.yz", "x,y"),
        (r"(?P<node>[a-z]+)[a\]b]: (?i:Lost)", "]:lost", "los"),
        (r"a$|^b", "b", "c"),
    ],
)
def test_lines_that_lack_one_do_not_fit(expression: str, fits: str, lacks: str) -> None:
    assert Literals(expression).are_in(fits)
    assert not Literals(expression).are_in(lacks)


@pytest.mark.parametrize("expression", [r"\d+", r"(a)\1", r"a?|b", r"\x41", r"(?>a)"])
def test_what_needs_none_or_is_not_understood_may_fit_anything(expression: str) -> None:
    assert Literals(expression).are_in("")


def test_no_rule_that_fits_a_line_is_ruled_out() -> None:
    lines = {line for part in PARTS for one in reports(part) for line in one.log.splitlines()}
    found = rules().search([template(line.encode()) for line in lines])
    assert len(found) > 500
    for line in lines:
        key = template(line.encode())
        for number in (one for one in found.get(key, ()) if one >= 0):
            rule = rules()._rules[number]
            if rule.has_line(line) and not rule.row.exception:
                assert rule.literals.are_in(key.decode()), line
