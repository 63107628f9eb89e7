from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.inprocess.abort import Abort
from undaunted.inprocess.completion import Completion
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.initialize import Initialize, RetryController
from undaunted.inprocess.nested_restarter import (
    LOGGER,
    NestedRestarterAborted,
    NestedRestarterCallback,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
    NestedRestarterLogger,
)
from undaunted.inprocess.state import FrozenState
from undaunted.inprocess.terminate import Terminate

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE = FrozenState(rank=5, world_size=8, active_world_size=8, initial_rank=0)


@pytest.fixture(autouse=True)
def _logger_of_its_own() -> Iterator[None]:
    logger = logging.getLogger(LOGGER)
    yield
    logger.handlers.clear()
    logger.propagate = True


@pytest.mark.parametrize(
    ("plugin", "kind", "lines"),
    [
        (
            NestedRestarterHandlingCompleted,
            Initialize,
            ["state=initialize", *["state=handling stage=completed"] * 2],
        ),
        (NestedRestarterHandlingStarting, Abort, ["state=handling stage=starting"] * 3),
        (NestedRestarterFinalized, Completion, ["state=finalized"] * 3),
        (NestedRestarterAborted, Terminate, ["state=aborted"] * 3),
    ],
)
def test_lines(
    plugin: Any, kind: type, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ours = plugin()
    assert isinstance(ours, kind)
    assert all(ours(STATE) is STATE for _ in lines)
    assert plugin(special_rank=1)(STATE) is STATE
    written = capsys.readouterr().out.splitlines()
    logger = r"\[[^]]+\] \[ALWAYS\] \[InprocessRestarter.Restarter\] "
    pattern = logger + r"\[NestedRestarter\] name=\[InProcess\] (.*)"
    found = [re.fullmatch(pattern, line) for line in written]
    assert [match[1] for match in found if match] == lines


def test_composed(capsys: pytest.CaptureFixture[str]) -> None:
    both = Compose(RetryController(), NestedRestarterHandlingCompleted())
    assert isinstance(both, Initialize)
    assert both(STATE) is STATE
    assert "state=initialize" in capsys.readouterr().out


def test_a_plug_in_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    class Processing(NestedRestarterCallback, Abort):
        """Tells of a stage that none of ours has."""

    ours = Processing(special_rank=0, state="handling", stage="processing")
    assert Compose(NestedRestarterHandlingStarting(), ours)(STATE) is STATE
    first, second = capsys.readouterr().out.splitlines()  # from the last to the first
    assert first.endswith("name=[InProcess] state=handling stage=processing")
    assert second.endswith("name=[InProcess] state=handling stage=starting")


def test_lines_may_go_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logger = NestedRestarterLogger(name="Mine", logger="a logger of mine")
    NestedRestarterFinalized(logger=logger)(STATE)
    logger.tell("handling", "starting")
    assert [(each.name, each.getMessage()) for each in caplog.records] == [
        ("a logger of mine", "[NestedRestarter] name=[Mine] state=finalized"),
        ("a logger of mine", "[NestedRestarter] name=[Mine] state=handling stage=starting"),
    ]
