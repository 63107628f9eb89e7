from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.attribution.samples import LOST_PEER
from undaunted.attribution.peers import is_peer_lost
from undaunted.checkpointing.errors import SaveError
from undaunted.inprocess.attribution import Interruption
from undaunted.inprocess.core.messages import Reason, Record
from undaunted.inprocess.guard.start import VARIABLE
from undaunted.inprocess.rank.failures import (
    log_failure,
    log_restart,
    names_failed_peer,
    names_lost_peer,
    reason_of,
    where,
)

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = Record(
    call=0,
    epoch=2,
    members=(0, 2),
    world_size=3,
    terminated=(1,),
    reasons=(
        Reason("HARD_TIMEOUT", 1, rank=1, text="no progress for 4 s"),
        Reason("EXCEPTION", 2, rank=2, text="Connection closed"),
    ),
)


def test_one_rank_says_why_the_function_runs_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    log_restart(RECORD, rank=1)
    assert not caplog.messages
    log_restart(RECORD, rank=0)
    assert caplog.messages == [
        (
            "[undaunted] iteration 2 begins with 2 ranks; rank 1 of the one before: HARD_TIMEOUT: "
            "no progress for 4 s, and 1 more"
        )
    ]


def test_the_place_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    reason = Reason("EXCEPTION", 1, rank=1, text="KeyError(3)", where="step (train.py:7)")
    log_restart(msgspec.structs.replace(RECORD, members=(1,), reasons=(reason,)), rank=0)
    assert "begins with 1 rank; rank 1 of the one before" in caplog.messages[0]
    assert caplog.messages[0].endswith("EXCEPTION: KeyError(3), in step (train.py:7)")


def test_a_failure_is_logged_and_reported_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyError) as info:
        raise KeyError(3)
    log_failure(logging.ERROR, 2, "fn_ex", info.value)
    reason = reason_of(info.value, Interruption.EXCEPTION, 4, 2)
    place = "in test_a_failure_is_logged_and_reported_with_its_place (test_failures.py:"
    assert f"rank=2 fn_ex: KeyError(3), {place}" in caplog.messages[0]
    assert place.startswith(f"in {reason.where.partition(':')[0]}")
    assert reason.text == "KeyError(3)"


def test_where_the_launcher_says_it_ranks_do_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "name")
    log_restart(RECORD, rank=0)
    assert not caplog.messages


def raised(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011 - any
        function()
    return info.value


def step() -> None:
    raise RuntimeError


def parse() -> None:
    json.loads("{")


def test_the_innermost_place_of_the_users_code() -> None:
    line = step.__code__.co_firstlineno + 1
    assert where(raised(step)) == f"step (test_failures.py:{line})"
    assert where(raised(parse)).startswith("parse (test_failures.py:")  # not where json raises


def test_one_that_was_never_raised() -> None:
    assert where(RuntimeError()) == ""


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/x/lib/python3.11/site-packages/megatron/train.py", "f (train.py:1)"),
        ("/x/lib/python3.11/site-packages/torch/nn/functional.py", ""),
        ("<string>", ""),
    ],
)
def test_a_program_that_is_installed(
    file: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope: dict[str, Any] = {}
    exec(compile("def f(): raise RuntimeError", file, "exec"), scope)
    error = raised(scope["f"])
    assert error.__traceback__ is not None
    assert where(error.with_traceback(error.__traceback__.tb_next)) == shown


class DistBackendError(RuntimeError):
    """As torch's."""


DistBackendError.__module__ = "torch.distributed"
RESET = "[gloo/transport/tcp/pair.cc:547] Connection reset by peer [127.0.0.1]:3141"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError(RESET), True),
        (DistBackendError("ncclRemoteError: A call failed"), True),
        (RuntimeError("a fault"), False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
        (ValueError(RESET), False),
    ],
)
def test_which_errors_are_consequences(error: BaseException, lost: bool) -> None:
    assert names_lost_peer(error) is lost


@pytest.mark.parametrize("text", LOST_PEER)
def test_launcher_and_function_know_the_same_messages(text: str) -> None:
    assert names_lost_peer(RuntimeError(text))
    assert names_lost_peer(DistBackendError(text))
    assert is_peer_lost("RuntimeError", text, "")


def test_an_error_of_a_save_that_another_rank_has_failed_with() -> None:
    error = SaveError("save 1 (step 7): rank 2: disk full", [2])
    assert [names_failed_peer(error, rank) for rank in range(4)] == [True, True, False, True]
    assert not names_failed_peer(SaveError("nobody is named"), 0)
    assert not names_failed_peer(ValueError("rank 2: bad batch"), 0)
