from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from tests.attribution.flight.dumps import job
from tests.attribution.flight.test_reader import HOSTILE
from undaunted.attribution.flight import files
from undaunted.attribution.flight.culprits import analyse
from undaunted.attribution.flight.files import rank_of, read_directory, read_files

if TYPE_CHECKING:
    from pathlib import Path

    from tests.attribution.flight.dumps import Rank


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
        ("nccl_trace_rank_10.4.7.2_9", 9),
        ("nccl_trace_rank_8h200-1_9", 9),
        ("nccl_trace_rank_hive-02_5", 5),
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


def test_hosts_that_are_numbers(tmp_path: Path) -> None:
    for one in job(4):
        one.write(tmp_path).rename(tmp_path / f"nccl_trace_rank_20{one.rank // 2}-1_{one.rank}")
    assert [one.rank for one in read_directory(tmp_path).recordings] == [0, 1, 2, 3]


def test_dumps_of_a_torch_that_counts_all_calls_alike(tmp_path: Path) -> None:
    for one in job(3):
        if one.rank != 1:
            one.call("0", state="scheduled")
        for entry in one.entries:
            entry["seq_id"] = entry.pop("collective_seq_id")
        one.write(tmp_path)
    (culprit,) = analyse(read_directory(tmp_path).recordings).culprits
    assert (culprit.rank, culprit.cause) == (1, "host_lag")


KEYS = ("pg_id", "seq_id", "profiling_name", "input_sizes", "output_sizes", "state", "retired")


def write_bare(one: Rank, folder: Path, *, named: bool = False) -> None:
    """Write a dump as torch 2.2 does: a list of entries, and nothing of the groups.

    ``named``: as torch 2.3 does, with a table of groups, but no names in entries.
    """
    entries = []
    for entry in one.entries:
        call = {**entry, "seq_id": entry["collective_seq_id"] or entry["p2p_seq_id"]}
        bare = {key: call[key] for key in KEYS}
        entries.append({**bare, "time_created_us": entry["time_created_ns"] // 1000})
    dump = one.dump()
    whole = {"version": "1.4", "entries": entries, "pg_config": dump["pg_config"]}
    (folder / f"nccl_trace_rank_{one.rank}").write_bytes(
        pickle.dumps(whole if named else entries, protocol=2)
    )


def test_dumps_that_are_bare_lists(tmp_path: Path) -> None:
    for one in job(4):
        if one.rank != 2:
            one.call("0", state="scheduled")
        write_bare(one, tmp_path)
    dumps = read_directory(tmp_path)
    assert dumps.problems == []
    assert [each.called > 0 for each in dumps.recordings] == [True] * 4
    (culprit,) = analyse(dumps.recordings).culprits
    assert (culprit.rank, culprit.cause) == (2, "host_lag")


GROUPS = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3]}


@pytest.mark.parametrize("named", [True, False])
def test_second_groups_of_ranks_are_not_taken_for_the_same_one(tmp_path: Path, named: bool) -> None:
    """Rank 3 does not come to the call of ranks 2 and 3; 0 and 1 wait for both of them."""
    for one in job(4, GROUPS):
        group = "1" if one.rank < 2 else "2"
        if one.rank < 2:
            one.call(group)
            one.call("0", state="scheduled")
        elif one.rank == 2:
            one.call(group, state="scheduled")
        write_bare(one, tmp_path, named=named)
    culprits = analyse(read_directory(tmp_path).recordings).culprits
    assert [each.rank for each in culprits if each.confidence >= 0.5] == [3]


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
