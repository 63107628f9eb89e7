from __future__ import annotations

import pytest

from tests.journal import sample
from tests.journal.sample import summary_of
from undaunted.journal.goodput import Times
from undaunted.journal.summary import Phases
from undaunted.journal.tables import CLASSES, PHASES, class_cells, percent, time_table


def test_every_phase_and_class_has_its_column() -> None:
    known = {*Phases.__struct_fields__} - {"total_to_step_ns"}  # total and step together
    assert {column.field for column in PHASES} == known
    assert {column.field for column in CLASSES} == {*Times.__struct_fields__}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (0.0, "0 %"),
        (0.00001, "0.1 %"),
        (0.0123, "1.2 %"),
        (0.5, "50 %"),
        (0.99, "99 %"),
        (0.9961, "99.6 %"),
        (0.99999, "99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_a_percentage_says_everything_or_nothing_only_where_that_is_so(
    part: float, said: str
) -> None:
    assert percent(part) == said


def test_classes_that_are_empty_are_left_out() -> None:
    assert [column.title for column, _ in class_cells(Times(load_ns=10**9, stop_ns=10))] == ["load"]
    (_, titles, *_rest) = time_table(summary_of(sample.RUN), None)
    assert "initialise" not in titles[0][0]
