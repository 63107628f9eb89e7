"""Causes of what the launcher has seen itself."""

from __future__ import annotations

import math
from itertools import product

import pytest

from undaunted.attribution.findings import CAUSES, SURE
from undaunted.attribution.verdicts import cause_seen
from undaunted.checkpointing.errors import (
    DamagedCheckpointError,
    NoCheckpointError,
    StructureError,
)
from undaunted.journal import events as e
from undaunted.training import check


def verdict(kind: str, **more: object) -> e.Verdict:
    return e.Verdict(t=1, kind=kind, rank=0, local_rank=0, pid=1, line="x", **more)  # type: ignore[arg-type]


ENDS = [
    {},
    {"exit_code": 1},
    {"signal": "SIGSEGV"},
    {"signal": "SIGKILL"},
    {"exception": "ValueError: bad"},
    {"exception": "RuntimeError: Connection closed by peer [127.0.0.1]:1"},
    {"signal": "SIGKILL", "watch": e.HARD_TIMEOUT},
    {"watch": "heartbeat", "waiting": [1]},
]


@pytest.mark.parametrize("kind", ["crash", "hang", "lost", "spawn_failed", "stopped", "x"])
def test_every_cause_is_a_row_or_is_not_known(kind: str) -> None:
    seen = [None, *(verdict(kind, **end) for end in ENDS)]
    told = [
        None,
        *(e.RoundBlamed(t=1, number=0, node="a", line="x", ranks=one) for one in ([], [0])),
    ]
    causes = {cause_seen(kind, one, blamed)[0] for one, blamed in product(seen, told)}
    assert causes <= {*CAUSES, ""}
    assert (kind in {"crash", "hang", "lost"}) == (causes != {""})


@pytest.mark.parametrize(
    ("kind", "iteration", "cause"),
    [
        ("ModuleNotFoundError", None, "missing_file"),
        ("FileNotFoundError", None, "missing_file"),
        ("FileNotFoundError", 7, "program_error"),
        ("KeyError", None, "program_error"),
    ],
)
def test_what_is_missing_before_the_first_step(
    kind: str, iteration: int | None, cause: str
) -> None:
    one = verdict("crash", exception=f"{kind}: x", iteration=iteration)
    assert cause_seen("crash", one) == (cause, 1.0)


def test_who_is_aborted_may_be_a_victim() -> None:
    """gloo aborts a rank that gets a collective of another size; NCCL one that has waited."""
    cause, confidence = cause_seen("crash", verdict("crash", signal="SIGABRT"))
    assert (cause, confidence < SURE) == ("native_crash", True)
    assert cause_seen("crash", verdict("crash", signal="SIGSEGV")) == ("native_crash", 1.0)


def test_who_most_likely_hangs_is_not_sure() -> None:
    def told(*, certain: bool) -> e.RoundBlamed:
        about = {"ranks": [1], "cause": "host_lag", "certain": certain}
        return e.RoundBlamed(t=1, number=0, node="a", line="x", **about)

    cause, confidence = cause_seen("hang", None, told(certain=False))
    assert (cause, confidence < SURE) == ("host_lag", True)
    assert cause_seen("hang", None, told(certain=True)) == ("host_lag", 1.0)


@pytest.mark.parametrize(
    "exception",
    [
        f"undaunted.checkpointing.errors.{StructureError.__name__}: rank 1: model: w is missing",
        f"undaunted.checkpointing.errors.{NoCheckpointError.__name__}: no checkpoint in a can be",
        f"undaunted.checkpointing.errors.{DamagedCheckpointError.__name__}: a/state.bin: block 3",
        "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for w",
        "ValueError: loaded state dict has a different number of parameter groups",
        "RuntimeError: Missing key in checkpoint state_dict: model.w.",
    ],
)
def test_a_checkpoint_that_cannot_be_used(exception: str) -> None:
    one = verdict("crash", exception=exception)
    assert cause_seen("crash", one) == ("checkpoint_mismatch", 1.0)


def test_a_check_of_the_program_is_known_by_its_error() -> None:
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(RuntimeError) as raised:
            check(number)
        exception = f"RuntimeError: {raised.value}"
        assert cause_seen("crash", verdict("crash", exception=exception)) == ("not_finite", 1.0)


@pytest.mark.parametrize(
    ("exception", "cause"),
    [
        ("FloatingPointError: step 91", "not_finite"),
        ("ValueError: the loss of step 3 is nan", "not_finite"),
        ("RuntimeError: grad norm is not finite: inf", "not_finite"),
        ("my.Bad: Non-finite gradients in layer 3", "not_finite"),
        ("ValueError: no information about the loss", "program_error"),
        ("ValueError: unexpected result of a query: -1", "program_error"),
        ("ValueError: nan is no name of a column", "program_error"),
    ],
)
def test_numbers_that_are_not_finite(exception: str, cause: str) -> None:
    assert cause_seen("crash", verdict("crash", exception=exception))[0] == cause
