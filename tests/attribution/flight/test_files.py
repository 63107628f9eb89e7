from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attribution.flight.dumps import job
from tests.attribution.flight.test_reader import HOSTILE
from undaunted.attribution.flight import files
from undaunted.attribution.flight.files import rank_of, read_directory, read_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_3", 3),
        ("_dump_3.json", 3),
        ("nccl_trace_rank_12", 12),
        ("comm_lib_trace_rank_0", 0),
        ("rank_3.json", 3),
        ("rank3.pkl", 3),
        ("nccl_trace_rank_5_20261122", 5),
        ("rank=7-of-8.pickle", 7),
        ("node17_rank_4.pickle", 4),
        ("dump.json", -1),
        ("README", -1),
    ],
)
def test_the_rank_of_a_file(name: str, rank: int) -> None:
    assert rank_of(name) == rank


def test_a_directory(tmp_path: Path) -> None:
    for one in job(4):
        one.write(tmp_path, as_json=one.rank % 2 == 1)
    (tmp_path / "inner").mkdir()
    dumps = read_directory(tmp_path)

    assert [one.rank for one in dumps.recordings] == [0, 1, 2, 3]
    assert dumps.problems == []


def test_what_is_no_dump_is_named_and_the_rest_counts(tmp_path: Path) -> None:
    ranks = job(3)
    for one in ranks:
        one.write(tmp_path)
    ranks[0].write(tmp_path, as_json=True)
    (tmp_path / "train.log").write_text("step 1\n")
    ranks[1].write(tmp_path).rename(tmp_path / "whose")
    dumps = read_directory(tmp_path)

    assert [one.rank for one in dumps.recordings] == [0, 2]
    assert [one.file for one in dumps.problems] == ["rank_0.json", "train.log", "whose"]


def test_a_file_that_ends_its_reader_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_PROCESSES", 1)
    for one in job(3):
        one.write(tmp_path)
    (tmp_path / "_dump_1").write_bytes(HOSTILE["nests a million lists"])
    dumps = read_directory(tmp_path)

    assert [one.rank for one in dumps.recordings] == [0, 2]
    assert [one.file for one in dumps.problems] == ["_dump_1"]


def test_too_many_files_that_end_their_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PROGRAM", "undaunted.no_such_program")
    for one in job(12):
        one.write(tmp_path)
    dumps = read_directory(tmp_path)

    assert dumps.recordings == []
    assert len(dumps.problems) == 12


def test_a_rank_above_the_limit_is_named(tmp_path: Path) -> None:
    first, second = job(2)
    first.write(tmp_path)
    second.write(tmp_path).rename(tmp_path / "_dump_131072")
    dumps = read_directory(tmp_path)

    assert [one.rank for one in dumps.recordings] == [0]
    (problem,) = dumps.problems
    assert problem.file == "_dump_131072"
    assert "131071" in problem.text


def test_no_files() -> None:
    assert read_files([]).recordings == []


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_directory(tmp_path / "absent")
