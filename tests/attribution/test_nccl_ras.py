"""Who keeps the others waiting, by what NCCL says of a job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution.nccl_ras import parse

A, B = "10.0.77.184", "10.0.77.185"


def rank(number: int, *, host: str = A, pid: int = 0, **counts: int) -> dict[str, Any]:
    return {
        "rank": number,
        "host": host,
        "pid": pid or 100 + number,
        "cuda_dev": number % 8,
        "nvml_dev": number % 8,
        "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
        "collective_counts": {"Broadcast": 0, "AllGather": 0, "AllReduce": 0, **counts},
    }


def missing(number: int, *, dead: bool, host: str = A) -> dict[str, Any]:
    status = {"unresponsive": not dead, "considered_dead": dead}
    return {"rank": number, "host": host, "pid": 100 + number, "nvml_dev": 1, "status": status}


def answer(*communicators: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> bytes:
    told = [
        {"hash": "0x1", "size": len(ranks), "ranks": ranks, "missing_ranks": gone}
        for ranks, gone in communicators
    ]
    return json.dumps({"nccl_version": "2.28.9", "communicators": told}, indent=2).encode()


def of(data: bytes, *pids: int) -> dict[int, str]:
    report = parse(data)
    assert report is not None
    return report.of(pids)


def test_the_rank_that_has_launched_fewer_collectives() -> None:
    data = answer(([*(rank(n, AllReduce=64) for n in range(3)), rank(3, AllReduce=60)], []))
    said = of(data, 100, 101, 102, 103)
    assert said.keys() == {103}
    assert "60" in said[103]
    assert "64" in said[103]


def test_who_waits_in_another_communicator_is_not_to_blame() -> None:
    """Rank 3 keeps 2 waiting, which for that has not come to the call in which 0 waits."""
    rows = ([rank(0, AllReduce=9), rank(2, AllReduce=8)], [])
    columns = ([rank(2, AllGather=5), rank(3, AllGather=4)], [])
    assert of(answer(rows, columns), 100, 101, 102, 103).keys() == {103}


def test_all_alike_say_nothing() -> None:
    assert of(answer(([rank(n, AllReduce=7) for n in range(4)], [])), 100, 101) == {}


def test_ranks_that_do_not_answer_nccl() -> None:
    data = answer(([rank(0, AllReduce=4)], [missing(1, dead=False), missing(2, dead=True)]))
    assert of(data, 100, 101, 102).keys() == {101, 102}
    assert of(data, 101) != of(data, 102)


def test_the_comma_that_nccl_leaves_out() -> None:
    data = answer(([rank(0, AllReduce=4)], [missing(1, dead=False)]))
    broken = data.replace(b'"nvml_dev": 1,\n', b'"nvml_dev": 1\n')
    assert broken != data
    assert of(broken, 100, 101).keys() == {101}


def test_processes_of_other_hosts_may_have_the_same_numbers() -> None:
    there = [rank(n, host=B, pid=100 + n, AllReduce=3) for n in (2, 3)]
    data = answer(([rank(0, AllReduce=4), rank(1, AllReduce=4), *there], []))
    assert of(data, 100, 101, 102) == {}


def test_a_job_of_others_on_the_same_machine() -> None:
    data = answer(([rank(0, AllReduce=4), rank(1, AllReduce=3)], []))
    assert of(data, 5000, 5001) == {}


MISMATCH = """\
NCCL version 2.24.3 compiled with CUDA 12.8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  MISMATCH

Errors
======


Warnings
========

#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different collective operation counts
  5 ranks have launched up to operation 64
  2 ranks have launched up to operation 62
  Rank 1 -- GPU 1 managed by process 101 on node 10.0.77.184
  Rank 2 -- GPU 2 (NVML 6) managed by process 102 on node 10.0.77.184
  Rank 3 has launched up to operation 60 -- GPU 3 managed by process 103 on node 10.0.77.184

"""
INCOMPLETE = """\
Communicators... (1.00s)
=============

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 102 on node 10.0.77.184 managing GPU 2

INCOMPLETE
  Missing communicator data from 1 job process
  Process 103 on node 10.0.77.184 managing GPU 3

#0-0 (1bdb83b038775869) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 2 -- GPU 2 managed by process 102 on node 10.0.77.184
  Rank 3 -- GPU 3 managed by process 103 on node 10.0.77.184

Warnings
========
"""


def test_text_of_an_older_nccl_that_names_who_is_behind() -> None:
    said = of(MISMATCH.encode(), 100, 101, 102, 103)
    assert said.keys() == {103}
    assert "60" in said[103]
    none = MISMATCH.replace("launched up to operation 60", "not launched any operations")
    assert of(none.encode(), 100, 103).keys() == {103}


def test_text_of_an_older_nccl_that_misses_ranks() -> None:
    said = of(INCOMPLETE.encode(), 100, 101, 102, 103)
    assert said.keys() == {102, 103}
    assert said[102] != said[103]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{}",
        b'{"communicators": 5}',
        b'{"communicators": [{"ranks": [7]}]}',
        b"HTTP/1.1",
    ],
)
def test_what_is_no_answer_of_nccl(data: bytes) -> None:
    assert parse(data) is None


@given(st.text(max_size=300), st.integers(0, len(MISMATCH)))
def test_text_of_any_form(text: str, place: int) -> None:
    for told in (MISMATCH, INCOMPLETE):
        report = parse((told[:place] + text + told[place:]).encode())
        assert report is None or all(isinstance(pid, int) for pid in report.of({101, 103}))
