"""A digest for each of many tensors, with and without xxhash."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
import torch
from torch import nn

from undaunted.digests import each
from undaunted.digests.each import BYTES, digests_of_each, how

LARGE = 300_001


@pytest.fixture(params=["xxh3", "sums"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "sums":
        monkeypatch.setattr(each, "_xxhash", lambda: None)
    else:
        pytest.importorskip("xxhash")
    assert how() == request.param


def of(tensor: torch.Tensor) -> bytes:
    (digest,) = digests_of_each([tensor])
    assert len(digest) == BYTES
    return digest


@pytest.mark.parametrize("size", [0, 1, 7, 4096, LARGE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool])
def test_a_copy_has_the_same_digest_and_another_type_or_shape_not(
    size: int, dtype: torch.dtype
) -> None:
    one = (torch.arange(size) % 251).to(dtype)
    assert of(one) == of(one.clone())
    assert of(one) != of(one.reshape(1, -1))
    assert of(torch.zeros(size, dtype=torch.int32)) != of(torch.zeros(size, dtype=torch.float32))


def test_any_bit_counts() -> None:
    chance = random.Random(3)
    one = torch.randn(70_001)
    before = of(one)
    for _ in range(100):
        other = one.clone()
        other.view(torch.uint8)[chance.randrange(other.nbytes)] ^= 1 << chance.randrange(8)
        assert of(other) != before


def test_what_is_equal_or_unequal_to_itself_as_a_number_counts_as_bits() -> None:
    assert of(torch.tensor([0.0])) != of(torch.tensor([-0.0]))
    quiet, payload = (torch.tensor([bits]).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert of(quiet) == of(quiet.clone())
    assert of(quiet) != of(payload)


def test_each_has_the_digest_that_it_has_alone() -> None:
    some: list[torch.Tensor] = [
        torch.ones(3, dtype=torch.bool),
        torch.randn(LARGE),
        torch.zeros(()),
        torch.randn(5, 4).t(),
        torch.empty(0),
        torch.empty(4, device="meta"),
        torch.randn(11),
    ]
    assert digests_of_each(some) == [of(one) for one in some]
    assert len(set(digests_of_each(some))) == len(some)
    assert of(some[3]) == of(some[3].contiguous())


def test_parameters_and_what_has_no_shape_yet() -> None:
    parameter = nn.Parameter(torch.ones(4))
    assert of(parameter) == of(parameter.detach())
    of(next(nn.LazyLinear(3).parameters()))


def test_words_that_lie_across_do_not_matter() -> None:
    whole: Any = torch.frombuffer(bytearray(struct.pack("<9f", *range(9))), dtype=torch.float32)
    assert of(whole[1:]) == of(whole[1:].clone())


def test_threads_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [torch.randn(3000), torch.ones(7, dtype=torch.bool), torch.randn(40, 9).t()]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = digests_of_each(some)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(each, "_FOR_THREADS_BYTES", 1)
    assert digests_of_each(some) == alone
