from __future__ import annotations

import re

from simulator.run import InvariantError, violated_by


def test_all_hold() -> None:
    assert violated_by(lambda: None) == ""


def test_an_invariant_that_does_not_hold() -> None:
    def simulate() -> None:
        raise InvariantError("never two worlds: of a and b")

    assert violated_by(simulate) == "never two worlds: of a and b"


def test_a_core_that_raises_is_a_finding() -> None:
    def simulate() -> None:
        raise KeyError(3)

    where = re.escape("no core raises: KeyError(3) at test_run.py:")
    assert re.fullmatch(rf"{where}\d+", violated_by(simulate))
