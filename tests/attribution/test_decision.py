from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution.decision import (
    MOST_BYTES,
    MOST_FAILURES,
    Decision,
    Failure,
    History,
    Round,
    decide,
    fingerprint,
)
from undaunted.attribution.findings import CAUSES, Finding

NODES = ("a", "b", "c", "d")


def after(
    *failures: Finding,
    iterations: tuple[int | None, ...] = (),
    nodes: tuple[str, ...] = NODES,
    spare: int = 1,
) -> Decision:
    """What is decided after the last of these failures."""
    history, decision = History(), Decision("restart", "")
    for index, finding in enumerate(failures):
        iteration = iterations[index] if iterations else 7
        about = Round(nodes, spare, iteration, float(index))
        history, decision = decide(history, [finding], about)
    return decision


def test_nothing_found_out_is_a_restart() -> None:
    history, decision = decide(History(), [], Round(NODES))
    assert decision.action == "restart"
    assert history == History()


def test_a_lost_gpu_excludes_its_node_at_once() -> None:
    decision = after(Finding("gpu_lost", (3,), ("b",)))
    assert (decision.action, decision.nodes) == ("exclude", ("b",))
    assert "b" in decision.reason


def test_no_node_is_excluded_that_cannot_be_spared() -> None:
    decision = after(Finding("gpu_lost", (3,), ("b",)), spare=0)
    assert decision.action == "restart"
    assert decision.nodes == ()


def test_a_node_that_is_not_known_is_not_excluded() -> None:
    assert after(Finding("gpu_lost", (3,))).action == "restart"


def test_all_nodes_at_once_are_no_nodes_fault() -> None:
    assert after(Finding("gpu_lost", (), NODES)).action == "restart"


def test_strikes_of_a_node_add_up() -> None:
    fault = Finding("nvlink_error", (3,), ("b",))
    assert CAUSES["nvlink_error"].after == 2
    assert after(fault).action == "restart"
    assert after(fault, Finding("nvlink_error", (4,), ("c",))).action == "restart"
    # Progress in between does not excuse a node.
    assert after(fault, fault, iterations=(7, 900)).action == "exclude"


def test_the_program_ends_the_job_only_when_it_fails_again_without_progress() -> None:
    error = Finding("program_error", quote="KeyError: 'labels' in /data/17.bin")
    assert after(error).action == "restart"
    assert after(error, error).action == "restart"
    assert after(error, error, error).action == "stop"
    assert after(error, error, error, iterations=(7, 7, 8)).action == "restart"
    assert after(error, error, error, iterations=(None, None, None)).action == "stop"


def test_a_checkpoint_that_does_not_fit_the_state_ends_the_job_too() -> None:
    quote = "undaunted.checkpointing.errors.StructureError: model: load_state_dict() refuses"
    error = Finding("program_error", quote=quote)
    assert after(error, error, error, iterations=(None, None, None)).action == "stop"


def test_a_state_that_cannot_be_saved_ends_the_job_wherever_it_was_noticed() -> None:
    error = Finding("state_not_saved", (0,), ("b",), quote="StateError: data differs")
    assert after(error, error).action == "restart"
    assert after(error, error, error).action == "stop"
    assert after(error, error, error, iterations=(7, 7, 8)).action == "restart"
    history = History()
    for action in ("restart", "restart", "stop"):
        history, decision = decide(history, [error], Round(NODES, spare=1, progress_known=False))
        assert decision.action == action


def test_an_error_of_the_launcher_comes_again_on_every_node() -> None:
    quote = "undaunted run: error: no such option: --nodes"
    error, history = Finding("launcher_error", (), ("b",), quote=quote), History()
    for action in ("restart", "restart", "stop"):
        history, decision = decide(history, [error], Round(NODES, spare=1, progress_known=False))
        assert decision.action == action


def test_what_is_missing_again_in_the_same_words_ends_the_job() -> None:
    def missing(path: str) -> Finding:
        return Finding("missing_file", quote=f"FileNotFoundError: [Errno 2] no: '{path}'")

    never = (None, None, None)
    one, other = missing("/data/1"), missing("/data/2")
    assert after(one, one, one, iterations=never).action == "stop"
    assert after(one, other, one, iterations=never).action == "restart"


def test_a_round_that_came_further_begins_the_count_anew() -> None:
    error = Finding("program_error", quote="KeyError: 'labels'")
    other = Finding("peer_lost")
    between = (error, error, other, error)
    assert after(*between, iterations=(7, 7, 9, 7)).action == "restart"
    assert after(*between, iterations=(7, 7, 6, 7)).action == "stop"
    assert after(*between, iterations=(None, None, 0, None)).action == "restart"
    assert after(error, other, error, error, error, iterations=(7, 9, 7, 7, 7)).action == "stop"


def test_a_round_of_which_nothing_is_known_counts_as_progress_too() -> None:
    error = Finding("program_error", quote="KeyError: 'labels'")
    history, _ = decide(History(), [error], Round(NODES, iteration=7))
    history, _ = decide(history, [error], Round(NODES, iteration=7))
    assert decide(history, [error], Round(NODES, iteration=7))[1].action == "stop"
    history, _ = decide(history, [], Round(NODES, iteration=8))
    assert decide(history, [error], Round(NODES, iteration=7))[1].action == "restart"


@pytest.mark.parametrize(
    "quote", ["RuntimeError: CUDA error", "OSError: [Errno 5]", "pkg.ServiceError: later"]
)
def test_an_exception_that_others_may_cause_is_a_restart(quote: str) -> None:
    assert after(*[Finding("program_error", quote=quote)] * 5).action == "restart"


@pytest.mark.parametrize(
    "quote",
    [
        "requests.exceptions.ConnectTimeout: host",
        "subprocess.TimeoutExpired: Command 'x' timed out",
        "_queue.Empty",
        "zmq.error.Again: Resource temporarily unavailable",
        "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC>",
        "[rank3]: urllib3.exceptions.ReadTimeout: got ValueError: x",
        "StopIteration",
    ],
)
def test_the_type_at_the_front_says_whose_exception_it_is(quote: str) -> None:
    assert after(*[Finding("program_error", (1,), ("b",), quote=quote)] * 9).action == "restart"
    own = Finding("program_error", (1,), quote="[rank3]: ValueError: read Timeout: x")
    assert after(*[own] * 3).action == "stop"


@pytest.mark.parametrize("cause", ["mismatch", "program_error"])
def test_after_a_hang_no_job_is_stopped(cause: str) -> None:
    history, decision = History(), Decision("restart", "")
    for _ in range(9):
        about = Round(NODES, 1, 500, hung=True)
        history, decision = decide(history, [Finding(cause, (1,), ("b",))], about)
    assert decision.action == "restart"


def test_another_error_is_another_failure() -> None:
    one = Finding("program_error", quote="KeyError: 'labels'")
    other = Finding("program_error", quote="TypeError: 'int' object is not callable")
    assert after(one, one, other).action == "restart"
    assert after(one, one, other, one).action == "stop"


def test_a_program_that_fails_on_one_node_only_is_tried_without_it() -> None:
    error = Finding("program_error", (2,), ("b",), quote="ImportError: libcudart.so.12")
    decision = after(error, error, error)
    assert (decision.action, decision.nodes) == ("exclude", ("b",))
    assert after(error, error).reason.endswith("after 3 times the advice is: exclude")
    # Where the node cannot be left out, a restart would end so again.
    assert after(error, error, spare=0).reason.endswith("after 3 times the advice is: stop")
    decision = after(error, error, error, spare=0)
    assert (decision.action, decision.nodes) == ("stop", ())
    # A job of one node has no other to compare with.
    assert after(error, error, error, nodes=("b",), spare=0).action == "stop"
    elsewhere = Finding("program_error", (6,), ("c",), quote="ImportError: libcudart.so.12")
    assert after(error, error, elsewhere).action == "stop"


def test_what_is_not_certain_is_a_restart() -> None:
    doubt = Finding("program_error", confidence=0.3, quote="KeyError")
    assert after(doubt, doubt, doubt).action == "restart"


@pytest.mark.parametrize("cause", [name for name, one in CAUSES.items() if one.action == "restart"])
def test_what_may_heal_never_ends_a_job(cause: str) -> None:
    assert after(*[Finding(cause, (1,), ("b",), quote="same")] * 10).action == "restart"


def test_a_cause_of_a_later_version_is_a_restart() -> None:
    assert after(*[Finding("gremlins")] * 5).action == "restart"


def test_the_severest_cause_is_the_root() -> None:
    timeout = Finding("collective_timeout", (0, 1, 2), t=1.0)
    memory = Finding("gpu_memory_error", (3,), ("b",), t=9.0)
    _, decision = decide(History(), [timeout, memory], Round(NODES, 1))
    assert decision.cause == memory
    assert decision.action == "exclude"


def test_fingerprints_leave_out_what_differs() -> None:
    one = fingerprint("RuntimeError: /scratch/a/1.bin: CUDA error at 0x7f12ab (rank 3, 4.5 s)")
    other = fingerprint("RuntimeError: /scratch/b/22.bin: CUDA error at 0x55 (rank 12, 17 s)")
    assert one == other
    assert "CUDA error" in one
    assert one != fingerprint("RuntimeError: no CUDA error at all")


def test_a_history_survives_being_written_down() -> None:
    history, _ = decide(History(), [Finding("disk_full", (), ("b",), quote="ENOSPC")], Round(NODES))
    assert History.decode(history.encode()) == history


@pytest.mark.parametrize(
    "encoded", [b"\xc1", b"{}", msgspec.msgpack.encode([1, 2]), b"x" * 99, b"\x91" * 9999]
)
def test_what_is_no_history_is_an_error(encoded: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        History.decode(encoded)
    assert History.decode(b"") == History()


def test_a_history_is_cut_where_it_is_too_long() -> None:
    many = History(tuple(Failure(str(n)) for n in range(99)))
    assert History.decode(msgspec.msgpack.encode(many)).failures == many.failures[-MOST_FAILURES:]


_findings = st.builds(
    Finding,
    cause=st.sampled_from([*CAUSES, "gremlins"]),
    ranks=st.lists(st.integers(0, 99), max_size=20).map(tuple),
    nodes=st.lists(st.text(max_size=300), max_size=20, unique=True).map(tuple),
    confidence=st.floats(0, 1),
    quote=st.text(max_size=500),
)


@given(st.lists(_findings, max_size=60))
def test_whatever_happens_a_history_is_bounded(findings: list[Finding]) -> None:
    history = History()
    for finding in findings:
        about = Round(NODES, 2, 5)
        history, decision = decide(history, [finding], about)
        assert len(decision.nodes) <= about.spare
        assert (decision.action == "exclude") == bool(decision.nodes)
        assert len(history.encode()) <= MOST_BYTES
    assert len(history.failures) <= MOST_FAILURES
    assert all(isinstance(one, Failure) for one in history.failures)
