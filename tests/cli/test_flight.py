"""``undaunted flight`` over real directories."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.attribution.flight.dumps import Rank, job
from undaunted.attribution.flight.culprits import Analysis, Culprit, GroupState
from undaunted.attribution.flight.files import Problem

PAGE = Path(__file__).parents[2] / "docs" / "flight.md"


def make(directory: Path, *, left: int = 4) -> Path:
    """Write dumps of four ranks, of which rank 2 has not come."""
    directory.mkdir(exist_ok=True)
    ranks = job(4)
    for one in ranks[:left]:
        if one.rank != 2:
            one.call("0", state="scheduled")
        one.write(directory)
    return directory


def test_json(tmp_path: Path, command: Any) -> None:
    (make(tmp_path, left=3) / "x").write_text("y")

    found = json.loads(command("flight", tmp_path, "--json", "--world-size", "5"))
    (culprit,) = found["culprits"]
    assert (culprit["rank"], culprit["cause"], culprit["group"]) == (2, "host_lag", "0")
    assert found["missing"] == [3, 4]
    assert found["waiting"] == [0, 1]
    assert [one["absent"] for one in found["groups"]] == [[2]]
    assert [one["file"] for one in found["problems"]] == ["x"]


def test_names_that_are_no_text(tmp_path: Path, command: Any) -> None:
    Path(os.fsdecode(bytes(make(tmp_path)) + b"/a\xff.log")).write_text("x")
    (problem,) = json.loads(command("flight", tmp_path, "--json"))["problems"]
    assert problem["file"].isprintable()


def test_a_single_dump(tmp_path: Path, command: Any) -> None:
    assert json.loads(command("flight", make(tmp_path) / "_dump_1", "--json"))["missing"] == [
        0,
        2,
        3,
    ]


def test_of_directories_the_last_iteration_is_hinted_at(tmp_path: Path, command: Any) -> None:
    for iteration in (2, 9, 10):
        make(tmp_path / f"iter_{iteration}")

    assert "iter_10" in command("flight", tmp_path, code=2)


def test_directories_of_nodes_are_one_job(tmp_path: Path, command: Any) -> None:
    make(tmp_path)
    for node, ranks in (("hive-0", (0, 1)), ("hive-1", (2, 3))):
        (tmp_path / node).mkdir()
        for rank in ranks:
            (tmp_path / f"_dump_{rank}").rename(tmp_path / node / f"_dump_{rank}")

    (tmp_path / "README").write_text("copied from the nodes")

    found = json.loads(command("flight", tmp_path, "--json"))
    (culprit,) = found["culprits"]
    assert (culprit["rank"], culprit["cause"]) == (2, "host_lag")
    assert [one["file"] for one in found["problems"]] == ["README"]


def test_nobody_waits(tmp_path: Path, command: Any) -> None:
    for one in job(2):
        one.write(tmp_path)

    assert "nobody waits" in command("flight", tmp_path)


def test_names_from_dumps_do_not_reach_the_terminal_as_they_are(
    tmp_path: Path, command: Any
) -> None:
    for one in job(2):
        one.call("0", "\x1b]0;owned\x07", state="scheduled")
        for entry in one.entries:
            entry["process_group"] = ("\x1b[31m", "\x1b[32m")
        one.write(tmp_path)
    (tmp_path / "\x1b[33m").write_text("")

    assert "\x1b" not in command("flight", tmp_path)


@pytest.mark.parametrize("form", [[], ["--nvrx"]])
def test_nothing_of_a_dump_makes_a_line(form: list[str], tmp_path: Path, command: Any) -> None:
    forged = "\nrank 0: forged\r\t\x85\u2028"
    for one in job(3):
        if one.rank:
            one.call("0", state="scheduled", dtype=forged)
        for entry in one.entries:
            entry["process_group"] = (f"0{forged}", forged)
            entry["profiling_name"] += forged
        one.write(tmp_path)
    (tmp_path / f"x{forged}").write_text("")

    lines = command("flight", tmp_path, *form).splitlines()
    assert any("forged" in line for line in lines)
    assert not [line for line in lines if line.startswith("rank 0: forged")]
    assert all(map(str.isprintable, lines))


def test_what_cannot_be_read_is_listed(tmp_path: Path, command: Any) -> None:
    make(tmp_path)
    os.mkfifo(tmp_path / "rank_7")
    (tmp_path / "rank_8").symlink_to("/dev/zero")
    (tmp_path / "rank_9").symlink_to("absent")
    (tmp_path / "below").mkdir()

    found = json.loads(command("flight", tmp_path, "--json"))
    assert [one["file"] for one in found["problems"]] == ["rank_7", "rank_8", "rank_9"]


def test_thousands_of_ranks_without_a_dump_are_few_lines(tmp_path: Path, command: Any) -> None:
    every = list(range(4096))
    for rank in every[:512:2]:
        one = Rank(rank, {"0": every})
        one.call("0", state="scheduled")
        one.write(tmp_path)

    out = command("flight", tmp_path)
    assert len(out) < 8192


@pytest.mark.parametrize("content", [None, "directory", "log"])
def test_no_dumps(content: str | None, tmp_path: Path, command: Any) -> None:
    if content == "directory":
        (tmp_path / "iter_3").mkdir()
    elif content == "log":
        (tmp_path / "log").write_text("step 1\n")

    assert {"directory": "iter_3", "log": "log"}.get(content or "", "") in command(
        "flight", tmp_path, code=2
    )


def test_every_key_of_the_json_is_documented() -> None:
    text = PAGE.read_text()
    classes = (Analysis, Culprit, GroupState, Problem)
    keys = {key for one in classes for key in one.__struct_fields__}

    assert {key for key in keys if f"`{key}`" not in text} == set()
