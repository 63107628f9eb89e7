from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks import __main__ as main_module
from benchmarks.cases import Case, Values
from benchmarks.launchers import Launcher
from benchmarks.stage import StageError
from benchmarks.table import Result

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

A = Launcher("undaunted", lambda job: [])
B = Launcher("torchrun", lambda job: [], detects_hangs=False)


def parse(monkeypatch: pytest.MonkeyPatch, *words: str) -> Namespace:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    return main_module.parse_arguments()


def test_default_is_everything_nine_times(monkeypatch: pytest.MonkeyPatch) -> None:
    args = parse(monkeypatch)
    assert args.pairs == 9
    assert {case.name for case in args.cases} == {"start", "crash", "hang", "idle"}
    assert {case.ranks for case in args.cases} == {1, 2, 8}
    assert args.calls == ["heartbeat", "event", "journal"]


def test_names_and_quick_select(monkeypatch: pytest.MonkeyPatch) -> None:
    args = parse(monkeypatch, "--quick", "crash", "journal")
    assert {case.name for case in args.cases} == {"crash"}
    assert {case.ranks for case in args.cases} == {2}
    assert (args.pairs, args.calls) == (3, ["journal"])


def test_unknown_name_is_answered_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(monkeypatch, "starts")
    assert "no benchmark named starts: there are start, crash" in capsys.readouterr().err


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the launchers in the order in which they are measured; nothing is swept."""
    monkeypatch.setattr(main_module, "end_descendants", lambda _: {})
    return []


def case(order: list[str], *, needs_hang_detection: bool = False) -> Case:
    def measure(launcher: Launcher) -> Values:
        order.append(launcher.name)
        return {"time": float(len(order))}

    return Case("start", "", 1, measure, needs_hang_detection)


def test_launchers_take_turns(order: list[str]) -> None:
    result = main_module.run_case(case(order), [A, B], pairs=2)
    assert order == ["undaunted", "torchrun", "undaunted", "torchrun"]
    assert result.values == {"undaunted": {"time": [1.0, 3.0]}, "torchrun": {"time": [2.0, 4.0]}}


def test_launchers_that_cannot_do_it_are_left_out(order: list[str]) -> None:
    main_module.run_case(case(order, needs_hang_detection=True), [A, B], pairs=1)
    assert order == ["undaunted"]


def test_a_failure_is_noted_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "end_descendants", lambda _: {7: "one", 8: "other"})

    def measure(launcher: Launcher) -> Values:
        if launcher is A:
            raise StageError("no start")
        return {"time": 1.0}

    result = main_module.run_case(Case("start", "", 1, measure), [A, B], pairs=1)
    assert result.values == {"undaunted": {}, "torchrun": {"time": [1.0]}}
    assert result.failures == [
        "no start",
        "undaunted left 2 processes behind",
        "torchrun left 2 processes behind",
    ]


def test_json_holds_every_value(tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    main_module.write_json(path, [Result("start", "t", 2, {"undaunted": {"time": [1.0, None]}})])
    content = json.loads(path.read_text())
    assert content["results"][0]["values"] == {"undaunted": {"time": [1.0, None]}}
    assert "Python" in content["machine"]
