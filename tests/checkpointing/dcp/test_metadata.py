from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import msgspec
import torch

from tests.checkpointing.dcp.saved import alone
from undaunted.checkpointing.dcp import metadata
from undaunted.checkpointing.dcp.saving import Saver
from undaunted.checkpointing.errors import CheckpointError
from undaunted.checkpointing.memory.arena import Arena

pytestmark = pytest.mark.torch


def test_another_process_makes_the_same_metadata() -> None:
    state: dict[str, Any] = {
        "tensors": {f"t{number}": torch.randn(number) for number in range(5)},
        "numbers": [1, 2, 3],
        "text": "x" * 5000,
    }
    planned = Saver(alone()).plan(state, 10)
    arena = Arena.create("test", 1 << 20)
    staged = planned.stage(arena)
    arena.close()
    built = metadata.from_blueprint(planned.blueprint(), [staged.report])
    assert metadata.decode(built, "built") == metadata.decode(
        planned.metadata([staged.report]), "planned"
    )


@pytest.mark.parametrize("damaged", [b"", b"\x92\xc4\x00\x90", b"\xff" * 20])
def test_a_damaged_blueprint_is_refused(damaged: bytes) -> None:
    with pytest.raises((CheckpointError, msgspec.DecodeError)):
        metadata.from_blueprint(damaged, [])
