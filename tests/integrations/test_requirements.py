"""A framework that lacks what an adapter needs is refused, with the names of that."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from undaunted.integrations.requirements import TRIED, Requirement, check, lacking

PINS = Path(__file__).parents[2] / "constraints.txt"


class Loop:
    """Of a framework."""

    def save(self, step: int, last: bool = False) -> None:
        pass

    def evaluate(self, trial: Any, keys: Any) -> None:
        pass

    def passes_on(self, *args: Any, **options: Any) -> None:
        pass


class Trainer:
    """Of a framework, or a subclass that changes a method."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.take = "abc".replace


def test_what_is_there_is_found() -> None:
    needed = [
        Requirement("loop"),
        Requirement("loop.save", 1),
        Requirement("loop.save", 2),
        Requirement("loop.evaluate", 0, ("trial", "keys")),
        Requirement("loop.passes_on", 5, ("any",)),
        Requirement("take", 2),
    ]
    assert not lacking(Trainer(), needed)
    check("lightning", Trainer(), needed)


@pytest.mark.parametrize(
    ("requirement", "named"),
    [
        (Requirement("stop"), "Trainer.stop"),
        (Requirement("loop.stop", 0), "Trainer.loop.stop"),
        (Requirement("loop.save", 3), "Trainer.loop.save"),
        (Requirement("loop.evaluate", 0, ("trial", "ignored")), "ignored"),
        (Requirement("loop", 0), "Trainer.loop"),
    ],
)
def test_what_is_lacking_is_named(requirement: Requirement, named: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(named)) as caught:
        check("no-such-package", Trainer(), [Requirement("loop"), requirement])
    assert len(lacking(Trainer(), [Requirement("loop"), requirement])) == 1
    assert "no-such-package" in str(caught.value)


def test_versions_that_were_tried_are_those_of_the_tests() -> None:
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", PINS.read_text(), re.MULTILINE))
    assert {name: pins[name.replace("_", "-")] for name in TRIED} == TRIED
