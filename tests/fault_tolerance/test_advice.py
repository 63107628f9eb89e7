"""From what nodes have found out, and the history, to advice."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution.decision import MOST_BYTES
from undaunted.coordinator.policy.messages import Advised, Blamed
from undaunted.coordinator.policy.verdict import Advice, Attempt
from undaunted.fault_tolerance.advice import advise, encode, failure_before, remembered
from undaunted.journal.events import JobEnded, RoundAdvised, RoundStarted, Verdict
from undaunted.journal.lines import encode as line_of

if TYPE_CHECKING:
    from pathlib import Path

NODES = ("a", "b", "c")


def found(
    exception: str = "",
    *,
    iteration: int | None = 7,
    lived_s: float = 1.0,
    kind: str = "crash",
    **about: Any,
) -> bytes:
    """What a node sends of its verdict."""
    line = f"rank 2 failed: {exception}"
    verdict = Verdict(
        t=1, kind=kind, rank=2, local_rank=0, pid=4, line=line, exception=exception,
        iteration=iteration, **about,
    )  # fmt: skip
    return encode(verdict, lived_s)


def failed(
    *finding: bytes,
    node: str = "b",
    cause: str = "",
    spare: int = 1,
    iteration: int | None = 7,
    lost: bool = False,
    certain: bool = True,
) -> Attempt:
    """A round that fails on a node; findings are of this node and of those after it."""
    blamed = Blamed(0, node, "rank 2 failed", (), (2,) if cause else (), cause, certain)
    first = NODES.index(node)
    findings = {NODES[(first + n) % 3]: each for n, each in enumerate(finding)}
    return Attempt(0, NODES, spare, iteration, blamed, lost, findings)


def passed(iteration: int) -> Attempt:
    """A round that was stopped for another reason."""
    return Attempt(0, NODES, 1, iteration, None, lost=False, findings={})


def last(*attempts: Attempt, history: bytes = b"") -> Advised:
    """What is advised after the last of these rounds."""
    for attempt in attempts:
        advice = advise(history, attempt)
        history = advice.history
        assert advice.problem == ""
    assert advice.advised is not None
    return advice.advised


@pytest.mark.parametrize("cause", ["output_unread", "unequal_work"])
def test_a_rank_that_failed_for_another_one_is_not_blamed(cause: str) -> None:
    advised = last(failed(found("BrokenPipeError: [Errno 32] Broken pipe", cause=cause)))
    assert (advised.cause, advised.ranks) == (cause, ())


ERROR = found("ValueError: bad batch 17")
EVERYWHERE = failed(ERROR, ERROR, ERROR)


def test_the_same_error_at_the_same_iteration_is_a_stop() -> None:
    first, second, third = (last(*[EVERYWHERE] * times) for times in (1, 2, 3))
    assert (first.action, first.cause) == ("restart", "program_error")
    assert (first.ranks, first.confidence) == ((2,), 1.0)
    assert (second.action, third.action) == ("restart", "stop")
    assert "3 times at iteration 7" in third.reason


def repeats(*attempts: Attempt) -> int:
    """How often the last of these failures has come without progress."""
    history, found = b"", 0
    for attempt in attempts:
        advice = advise(history, attempt)
        history, found = advice.history, advice.repeats
    return found


def test_the_same_failure_is_counted_until_the_job_comes_further() -> None:
    at_once = failed(found("ValueError: x", iteration=None), iteration=None)
    assert [repeats(*[at_once] * times) for times in (1, 2, 7)] == [1, 2, 7]
    assert repeats(at_once, at_once, passed(30), at_once) == 1
    another = failed(found("KeyError: 1", iteration=None), iteration=None)
    assert repeats(at_once, another) == 1
    exits = failed(found(exit_code=1, iteration=None), iteration=None)
    assert repeats(exits, exits) == 2


def test_failures_after_which_progress_is_not_known_are_not_counted() -> None:
    late = failed(found("ValueError: x", iteration=None, lived_s=3600.0), iteration=None)
    assert repeats(late, late, late) == 0
    assert repeats(failed(b"", iteration=None)) == 0


def test_progress_in_between_is_a_restart() -> None:
    twice = [EVERYWHERE] * 2
    further = failed(found("KeyError: 'x'", iteration=30), iteration=30)
    assert last(*twice, further, EVERYWHERE).action == "restart"
    assert last(*twice, passed(30), EVERYWHERE).action == "restart"
    assert last(*twice, failed(b"", iteration=30), EVERYWHERE).action == "restart"
    assert last(*twice, passed(5), EVERYWHERE).action == "stop"


def test_where_progress_is_not_known_it_is_a_restart() -> None:
    late = failed(found("ValueError: x", iteration=None, lived_s=3600.0), iteration=None)
    assert last(late, late, late, late).action == "restart"
    # It has failed before it can have done anything.
    early = found("ValueError: x", iteration=None, lived_s=5.0)
    at_once = failed(early, early, early, iteration=None)
    assert last(at_once, at_once, at_once).action == "stop"


@pytest.mark.parametrize(
    "exception",
    [
        "RuntimeError: CUDA error: unspecified launch failure",
        "OSError: [Errno 5] Input/output error",
        "ConnectionError: the data service is away",
        "TimeoutError",
        "botocore.exceptions.ClientError: SlowDown",
        "MyError: retry later",
        "MemoryError",
        "torch.OutOfMemoryError: CUDA out of memory",
        "json.decoder.JSONDecodeError: Expecting value",
        "",
    ],
)
def test_what_may_have_its_reason_outside_of_the_program_is_a_restart(exception: str) -> None:
    error = failed(*[found(exception, exit_code=1)] * 3)
    assert last(*[error] * 9).action == "restart"


def test_an_error_of_one_node_each_time_leaves_it_out_first() -> None:
    there = failed(ERROR)
    third = last(there, there, there)
    assert (third.action, third.nodes) == ("exclude", ("b",))
    unspared = failed(ERROR, spare=0)
    assert last(unspared, unspared, unspared).action == "stop"


def test_a_node_that_crashes_again_and_again_is_left_out() -> None:
    crash = [failed(found(signal="SIGSEGV", iteration=n), iteration=n) for n in range(3)]
    assert last(*crash[:2]).action == "restart"
    third = last(*crash)
    assert (third.action, third.nodes, third.cause) == ("exclude", ("b",), "native_crash")
    elsewhere = failed(found(signal="SIGSEGV"), node="c")
    assert last(*crash[:2], elsewhere).action == "restart"


def test_a_node_that_is_lost_again_and_again_is_left_out() -> None:
    lost = failed(lost=True)
    assert last(lost).action == "restart"
    assert last(lost, lost, lost).nodes == ("b",)


def test_a_hang_has_the_cause_that_was_ruled() -> None:
    hang = failed(cause="device_lag")
    assert last(hang).action == "restart"
    assert (last(hang, hang).action, last(hang, hang).nodes) == ("exclude", ("b",))
    assert last(*[failed(found(kind="hang"))] * 9).action == "restart"  # a guess


def test_after_a_hang_of_one_node_in_different_collectives_no_job_is_stopped() -> None:
    hang = failed(found(kind="hang", cause="mismatch", iteration=10))
    assert last(*[hang] * 9).action == "restart"


def test_who_most_likely_hangs_is_never_left_out() -> None:
    assert last(*[failed(cause="device_lag", certain=False)] * 9).action == "restart"


def test_the_loss_of_a_quorum_or_an_unknown_cause_is_a_restart() -> None:
    nowhere = Attempt(0, NODES, 1, 7, Blamed(0, "", "no quorum"), lost=True, findings={})
    assert last(*[nowhere] * 4).nodes == ()
    assert last(*[failed()] * 9).action == "restart"
    assert last(*[failed(cause="gremlins")] * 9).action == "restart"


@pytest.mark.parametrize("history", [b"\xc1", b"{}", b"\x81\xa8failures\x01", b"\x91" * 9999])
def test_a_damaged_history_is_an_empty_one_and_that_is_said_once(history: bytes) -> None:
    first = advise(history, EVERYWHERE)
    assert first.problem
    assert first.advised is not None
    assert first.advised.action == "restart"
    assert last(EVERYWHERE, EVERYWHERE, history=first.history).action == "stop"


@given(st.binary(max_size=300) | st.just(b"x" * 5000), st.binary(max_size=200))
def test_whatever_bytes_there_are_it_is_a_restart(finding: bytes, history: bytes) -> None:
    advice = advise(history, failed(finding, lost=False))
    assert isinstance(advice, Advice)
    assert advice.advised is None or advice.advised.action == "restart"
    assert len(advice.history) <= MOST_BYTES


def test_a_function_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("undaunted.attribution.decision.decide", fails)
    assert advise(b"", EVERYWHERE) == Advice(None, b"", "ZeroDivisionError: oh")


def test_a_history_of_a_newer_version_counts() -> None:
    """It may have fields and causes that this one does not know."""
    newer = msgspec.msgpack.encode(
        {"failures": [{"cause": "gremlins", "nodes": ["b"], "mood": "bad"}], "more": [1]}
    )
    advice = advise(newer, EVERYWHERE)
    assert advice.problem == ""
    assert advice.advised is not None
    assert advice.advised.action == "restart"


@pytest.mark.parametrize("seed", range(200))
def test_retryable_failures_never_stop_a_job(seed: int) -> None:
    """Simulated jobs: whatever fails in passing, with progress now and then, goes on."""
    random = Random(seed)
    history, iteration, started = b"", 0, 0
    for _ in range(60):
        node = random.choice(NODES)
        match random.randrange(6):
            case 0:
                attempt = failed(lost=True, node=node, iteration=iteration)
            case 1:
                attempt = failed(cause="device_lag", node=node, iteration=iteration)
            case 2:
                text = random.choice(["OSError: x", "RuntimeError: y", "ServiceError: z"])
                error = found(text, iteration=iteration)
                attempt = failed(error, error, error, node=node, iteration=iteration)
            case 3:
                attempt = failed(
                    found(signal="SIGSEGV", iteration=iteration), node=node, iteration=iteration
                )
            case 4:
                attempt = passed(iteration)
            case _:  # an error of the program which the next round passes
                error = found("ValueError: x", iteration=iteration)
                attempt = failed(error, error, error, node=node, iteration=iteration)
                iteration += 1
        advice = advise(history, attempt)
        history = advice.history
        assert advice.problem == ""
        assert advice.advised is None or advice.advised.action != "stop"
        assert len(history) <= MOST_BYTES
        started += 1
        iteration += random.choice([0, 0, 3])
    assert started == 60


STARTED = RoundStarted(t=1, round=0, world_size=2, ranks=[0, 1])
ENDED = JobEnded(t=9, round=0, outcome="failed", exit_code=1, reason="no restarts left")


def advised(failure: str) -> RoundAdvised:
    return RoundAdvised(t=2, round=0, number=0, action="restart", failure=failure)


@pytest.mark.parametrize(
    ("events", "known"),
    [
        ([STARTED, advised("a"), ENDED], "a"),
        ([STARTED, advised("a"), STARTED, advised("b"), ENDED], "b"),
        ([STARTED, advised("a"), STARTED, ENDED], ""),  # the last round did not fail
        ([STARTED, ENDED], ""),
        ([], ""),
    ],
)
def test_how_an_earlier_start_ended_is_in_its_journal(
    tmp_path: Path, events: list[Any], known: str
) -> None:
    journal = tmp_path / "journal-a.jsonl"
    assert failure_before(journal) == ""
    journal.write_bytes(b"\xff{" * 700_000 + b"\n" + b"".join(map(line_of, events)) + b'{"torn')
    assert failure_before(journal) == known


def test_a_failure_is_remembered_with_its_run() -> None:
    assert remembered("", "7", 5.0) == ""
    failure = advise(b"", failed(found("FloatingPointError: loss is nan"))).failure
    known = msgspec.json.decode(remembered(failure, "7", 5.0))
    assert (known["run"], known["at"], known["cause"]) == ("7", 5.0, "not_finite")
