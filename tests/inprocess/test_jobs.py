"""Jobs of several processes with guards of their own: what is restarted where."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING

import pytest

from tests.inprocess.rank_jobs import Job
from tests.ports import address_of_this_machine, free_ports
from undaunted.cli.flight import main as flight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.torch]

# Of one that does not make progress, or holds the GIL, in seconds.
SHORT = {
    "soft_timeout": 3,
    "hard_timeout": 4,
    "progress_watchdog_interval": 0.2,
    "monitor_thread_interval": 0.2,
    "monitor_process_interval": 0.2,
    "termination_grace_time": 0.2,
}


def test_every_fault_restarts_all_ranks(tmp_path: Path) -> None:
    with Job(tmp_path, 4, "take_turns", times=20) as job:
        outcomes = job.wait()
    for rank, outcome in enumerate(outcomes):
        assert outcome.code == 0, outcome.stderr
        assert outcome.results() == [{"iteration": 20, "rank": rank, "world": 4}]
        entered = [line["iteration"] for line in outcome.told[:-1]]
        assert entered == sorted(set(entered))
        # Who comes when an iteration is over already does not begin it.
        assert {20, *range(rank, 20, 4)} <= set(entered)


@pytest.mark.parametrize("by", ["cProfile", "settrace"])
def test_a_program_that_is_profiled_is_restarted(tmp_path: Path, by: str) -> None:
    with Job(tmp_path, 2, "take_turns_watched", times=4, by=by) as job:
        outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0, 0], [each.stderr for each in outcomes]
    assert [outcome.results()[0]["iteration"] for outcome in outcomes] == [4, 4]


@pytest.mark.parametrize(("how", "who"), [("kill", 0), ("kill", 1), ("leave", 2)])
def test_the_others_go_on_without_one_that_is_gone(tmp_path: Path, how: str, who: int) -> None:
    with Job(tmp_path, 3, "one_fails", who=who, how=how) as job:
        outcomes = job.wait()
    codes = [outcome.code for outcome in outcomes]
    assert codes.pop(who) == {"kill": -9, "leave": 3}[how]
    assert codes == [0, 0], [outcome.stderr for outcome in outcomes]
    results = [outcome.results() for outcome in outcomes if outcome.code == 0]
    assert results == [[{"iteration": 1, "rank": rank, "world": 2}] for rank in (0, 1)]


@pytest.mark.parametrize("how", ["stop", "lock", "alone"])
def test_one_that_cannot_be_interrupted_is_ended(tmp_path: Path, how: str) -> None:
    with Job(tmp_path, 3, "one_fails", who=1, how=how, limits=SHORT) as job:
        outcomes = job.wait()
    assert [outcome.code < 0 for outcome in outcomes] == [False, True, False]
    results = [outcome.results()[0]["world"] for outcome in outcomes if outcome.code == 0]
    assert results == [2, 2]


def test_the_others_wait_for_the_end_of_one_that_is_late(tmp_path: Path) -> None:
    limits = {**SHORT, "heartbeat_timeout": 4, "heartbeat_interval": 1, "barrier_timeout": 5}
    with Job(tmp_path, 3, "one_is_late", limits=limits) as job:
        outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0, -15, 0], [each.stderr for each in outcomes]
    assert [outcomes[rank].results() for rank in (0, 2)] == [[[True]], [[True]]]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("sleep", "in sleep (rank_program.py:"),
        ("sleep in C", "in sleep_in_c (rank_program.py:"),
        ("lock", "no stack"),
        ("stop", "stopped by a signal"),
    ],
)
def test_the_rank_that_all_others_wait_for_is_blamed(tmp_path: Path, how: str, says: str) -> None:
    limits = {**SHORT, "hard_timeout": 8}
    with Job(tmp_path, 4, "one_is_waited_for", who=1, how=how, limits=limits) as job:
        outcomes = job.wait()
    [line] = [
        line
        for outcome in outcomes
        for line in outcome.stderr.splitlines()
        if "iteration 1 begins" in line
    ]
    assert "; rank 1 (node " in line
    assert " hangs: " in line
    assert says in line
    assert "3 ranks wait for it in all_reduce" in line


def test_what_the_abort_has_written_names_the_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"TORCH_FR_BUFFER_SIZE": "100", "NVRX_FR_TRACE_PATH": str(tmp_path / "traces")}
    limits = {**SHORT, "hard_timeout": 20}
    with Job(
        tmp_path, 4, "one_is_waited_for", who=1, how="sleep", limits=limits, variables=variables
    ) as job:
        outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0] * 4, [one.stderr for one in outcomes]
    assert flight([str(tmp_path / "traces" / "iter_0"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["rank"], one["cause"]) for one in found["culprits"]] == [(1, "host_lag")]
    assert (found["missing"], found["waiting"]) == ([], [0, 2, 3])


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_whose_guard_is_stopped_leaves(tmp_path: Path, who: int) -> None:
    limits = {**SHORT, "soft_timeout": 60, "hard_timeout": 65, "heartbeat_timeout": 2}
    with Job(tmp_path, 3, "one_fails", who=who, how="stop guard", limits=limits) as job:
        outcomes = job.wait()
    left = [0, 1, 2] if who == 0 else [who]  # the controller is in rank 0's guard
    for rank, outcome in enumerate(outcomes):
        if rank in left:
            assert outcome.code == 1, outcome.stderr
            assert "InternalError" in outcome.stderr.splitlines()[-1]
        else:
            assert outcome.results()[0]["world"] == 2, outcome.stderr
    assert "was stopped" in outcomes[who].stderr


def test_a_rank_that_holds_the_gil_is_ended_when_its_guard_is_cut_off(tmp_path: Path) -> None:
    limits = {**SHORT, "soft_timeout": 110, "hard_timeout": 115, "heartbeat_timeout": 2}
    with Job(tmp_path, 2, "one_is_cut_off", limits=limits) as job:
        outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [1, -15], [each.stderr for each in outcomes]


def test_a_reserve_takes_the_place_of_one_that_is_gone(tmp_path: Path) -> None:
    with Job(tmp_path, 3, "one_fails", who=0, how="kill", active=2) as job:
        outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [-9, 0, 0]
    results = [outcome.results()[0] for outcome in outcomes[1:]]
    assert results == [{"iteration": 1, "rank": rank, "world": 2} for rank in (0, 1)]


def test_a_reserve_that_is_not_needed_returns_none(tmp_path: Path) -> None:
    with Job(tmp_path, 3, "take_turns", times=2, active=2) as job:
        outcomes = job.wait()
    assert [outcome.code for outcome in outcomes] == [0, 0, 0]
    assert outcomes[2].results() == [None]


def test_faults_in_all_ranks_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, 4, "all_fail") as job:
        outcomes = job.wait()
    assert [outcome.results() for outcome in outcomes] == [[1]] * 4


def test_a_function_that_is_called_again_and_again(tmp_path: Path) -> None:
    with Job(tmp_path, 2, "all_fail", calls=5) as job:
        outcomes = job.wait()
    assert [outcome.results() for outcome in outcomes] == [[1] * 5] * 2


def test_a_restart_waits_for_atomic(tmp_path: Path) -> None:
    with Job(tmp_path, 3, "one_is_in_atomic") as job:
        outcomes = job.wait()
    assert [outcome.results() for outcome in outcomes] == [[1]] * 3
    assert [{"saved": rank} in outcome.told for rank, outcome in enumerate(outcomes)] == [
        False,
        True,
        True,
    ]


def test_collectives_are_aborted(tmp_path: Path) -> None:
    with Job(tmp_path, 4, "collectives", times=5) as job:
        outcomes = job.wait()
    assert [outcome.results() for outcome in outcomes] == [[5]] * 4


def test_a_fault_while_a_group_is_made(tmp_path: Path) -> None:
    with Job(tmp_path, 3, "some_do_not_come") as job:
        outcomes = job.wait()
    assert [outcome.results() for outcome in outcomes] == [[1]] * 3


def test_a_group_whose_making_hangs(tmp_path: Path) -> None:
    limits = SHORT | {"soft_timeout": 1, "hard_timeout": 60}
    with Job(tmp_path, 3, "they_do_not_find_each_other", limits=limits) as job:
        outcomes = job.wait()
    assert [outcome.results() for outcome in outcomes] == [[1]] * 3


def test_on_one_machine_no_port_is_needed(tmp_path: Path) -> None:
    with two_taken_ports() as port:
        environ = {"MASTER_PORT": str(port)}
        with Job(tmp_path, 2, "take_turns", times=2, variables=environ) as job:
            outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.results()[0]["iteration"] == 2, outcome.stderr


def test_on_several_nodes_the_masters_port_is_for_the_function(tmp_path: Path) -> None:
    with taken_port() as port:  # as trainers do who put a store of theirs there
        environ = several_nodes(port - 1)
        with Job(tmp_path, 3, "a_group_at_the_masters_port", variables=environ) as job:
            outcomes = job.wait()
    assert [outcome.results() for outcome in outcomes] == [[0]] * 3, outcomes


@pytest.mark.leaves("threads", "fds")  # torch gives them back when it likes
def test_on_several_nodes_a_store_at_the_masters_port_says_where_the_guard_is(
    tmp_path: Path,
) -> None:
    dist = pytest.importorskip("torch.distributed")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with Job(tmp_path, 3, "collectives", times=2, variables=several_nodes(store.port)) as job:
        outcomes = job.wait()
    assert [outcome.results() for outcome in outcomes] == [[2]] * 3, outcomes


def several_nodes(port: int) -> dict[str, str]:
    """Variables of ranks of which each says that it has a node of its own."""
    return {
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": address_of_this_machine(),
        "MASTER_PORT": str(port),
        "UNDAUNTED_TOKEN": "a token of twenty characters",
    }


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port that somebody listens at; the one before it is free."""
    with socket.socket() as taken:
        taken.bind(("", free_ports(2) + 1))
        taken.listen()
        yield taken.getsockname()[1]


@contextlib.contextmanager
def two_taken_ports() -> Iterator[int]:
    with taken_port() as port, socket.socket() as before:
        before.bind(("", port - 1))
        before.listen()
        yield port - 1
