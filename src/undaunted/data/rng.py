"""Random numbers that belong to a sample, or to a micro-batch, and to no process."""

from __future__ import annotations

import hashlib
import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from undaunted.base import random_generators

if TYPE_CHECKING:
    from collections.abc import Iterator

_32_BITS = (1 << 32) - 1


def seed_of(*numbers: int | str) -> int:
    """Return a seed of 63 bits, which has nothing to do with that of other numbers."""
    made = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(made, "little") >> 1


def seed_process(seed: int) -> None:
    """Seed the generators that transforms use: torch's on the CPU, Python's, and numpy's."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & _32_BITS)


def seed_training(seed: int) -> None:
    """Seed torch's generators: that of the CPU, and that of the device in use."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    elif torch.accelerator.is_available() and not torch.cuda.is_available():
        torch.manual_seed(seed)


@contextmanager
def put_back() -> Iterator[None]:
    """Leave the generators of this process, but those of devices, as they were."""
    before = random_generators.states(devices=False)
    try:
        yield
    finally:
        random_generators.set_states(before)
