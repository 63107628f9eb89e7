from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.agreement.failures import Failure
from undaunted.agreement.turn import Member, Turn
from undaunted.attribution.peers import failed_rank
from undaunted.checkpointing.errors import AGREED

OURS = "undaunted.checkpointing.errors.SaveError: "

TORCHS = "torch.distributed.checkpoint.api.CheckpointException"


@pytest.mark.parametrize(
    ("exception", "rank"),
    [
        (OURS + "save 5 (step 50): rank 1: /data/x: File too large [EFBIG]; raise it", 1),
        (OURS + "the save of /data/x: rank 12 (node-3): OSError: disk", 12),
        (
            OURS + "save 5 (step 50): rank 1 of 2 did not answer within 60 s, says rank 0: hung",
            None,
        ),
        (OURS + "rank 0 is at 'open', but rank 2 at 'load': all ranks have to", None),
        (OURS + "no rank is named", None),
        (OURS.strip(), None),
        (f"{TORCHS}: CheckpointException ranks:dict_keys([3, 5])\nTraceback", 3),
        (f"{TORCHS}: other words", None),
        ("ValueError: rank 1: bad batch", None),
        ("SaveError: save: rank 1: somebody else's", None),
        ("", None),
    ],
)
def test_which_rank_a_message_says_has_failed(exception: str, rank: int | None) -> None:
    assert failed_rank(exception) == rank


@pytest.mark.parametrize(
    "kind",
    [
        "SaveError",
        "StateError",
        "WriterError",
        "StaleEpochError",
        "OccupiedError",
        "StructureError",
    ],
)
def test_what_ranks_tell_each_other_names_the_one(kind: str) -> None:
    turn = Turn(Member(None, 1, 3, [4, 5, 6]), "p", "save 1 (step 7)", 1.0)
    verdict = turn.failed(Failure("/data/x: No space left on device", 28, kind))
    assert verdict.failure is not None
    error = verdict.failure.error(AGREED, verdict.ranks)
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    assert name.endswith(kind)
    assert failed_rank(f"{name}: {error}") == 5


@given(st.text())
def test_any_text(text: str) -> None:
    assert failed_rank(text) is None
    rank = failed_rank(OURS + text)
    assert rank is None or rank >= 0
