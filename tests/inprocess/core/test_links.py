from __future__ import annotations

import pytest

from undaunted.inprocess.core.links import GRACE_S, patience_s


@pytest.mark.parametrize(
    ("in_order", "back", "longest"),
    [(True, False, GRACE_S), (True, True, 42.0), (False, False, 42.0), (False, True, 42.0)],
)
def test_only_a_guard_that_has_ended_is_given_up_soon(
    in_order: bool, back: bool, longest: float
) -> None:
    assert patience_s(42.0, in_order=in_order, back=back) == longest
