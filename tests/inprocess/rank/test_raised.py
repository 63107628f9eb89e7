from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.checkpointing.errors import SaveError
from undaunted.inprocess.rank.raised import names_failed_peer, names_lost_peer, where

if TYPE_CHECKING:
    from collections.abc import Callable


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
    assert where(raised(step)) == f"step (test_raised.py:{line})"
    assert where(raised(parse)).startswith("parse (test_raised.py:")  # not where json raises


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


def test_an_error_of_a_save_that_another_rank_has_failed_with() -> None:
    error = SaveError("save 1 (step 7): rank 2: disk full", [2])
    assert [names_failed_peer(error, rank) for rank in range(4)] == [True, True, False, True]
    assert not names_failed_peer(SaveError("nobody is named"), 0)
    assert not names_failed_peer(ValueError("rank 2: bad batch"), 0)
