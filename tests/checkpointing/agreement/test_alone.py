from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.checkpointing.agreement.alone import Alone
from undaunted.checkpointing.agreement.messages import Failure
from undaunted.checkpointing.errors import SaveError, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_it_decides_by_itself() -> None:
    alone = Alone("s")
    assert (alone.rank, alone.world_size, alone.session) == (0, 1, "s")
    assert alone.round("r", b"x", lambda found: found[0] * 2, 1.0) == b"xx"


def test_a_failure_is_raised() -> None:
    with pytest.raises(SaveError, match=r"^disk full$") as caught:
        Alone("s").round("r", Failure("disk full", 28), lambda _: b"", 1.0)
    assert (caught.value.ranks, caught.value.errno) == ((0,), 28)


@pytest.mark.parametrize("known", [True, False])
def test_what_is_raised_while_deciding(known: bool) -> None:
    raised = StaleEpochError("old") if known else OSError(5, "Input/output error", "/x")

    def decide(contributions: Sequence[bytes]) -> bytes:
        raise raised

    with pytest.raises(SaveError) as caught:
        Alone("s").round("r", b"", decide, 1.0)
    if known:
        assert caught.value is raised
    else:
        assert caught.value.errno == 5
        assert caught.value.__cause__ is raised
