"""Digests of tensors, modules and optimizers."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from torch import nn

from undaunted.digests import tensors
from undaunted.digests.state import digest_of, module_parts, optimizer_digest, parts_of

LARGE = 300_001  # more than two pieces of four-byte numbers, and a rest


def filled(size: int = LARGE, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(size) % 251).to(dtype)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, LARGE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_copy_has_the_same_digest(size: int, dtype: torch.dtype) -> None:
    one = filled(size, dtype)
    assert digest_of(one) == digest_of(one.clone())


@pytest.mark.parametrize("position", [0, 1, LARGE // 2, LARGE - 2, LARGE - 1])
@pytest.mark.parametrize("bit", [0, 15, 31])
def test_every_bit_counts(position: int, bit: int) -> None:
    one = filled()
    other = one.clone()
    other.view(torch.int32)[position] ^= -(1 << 31) if bit == 31 else 1 << bit
    assert digest_of(one) != digest_of(other)


def test_changes_do_not_cancel_out() -> None:
    """Neither signs, which are the highest bits, nor places that change with each other."""
    one = torch.ones(LARGE, dtype=torch.float64)
    assert digest_of(one) != digest_of(-one)
    two = one.clone()
    two[:2] = -1
    assert digest_of(one) != digest_of(two)
    counted = filled()
    swapped = counted.clone()
    swapped[[2, 200]] = counted[[200, 2]]
    assert digest_of(counted) != digest_of(swapped)
    assert digest_of(counted) != digest_of(counted.roll(1 << 18))  # whole pieces, moved


@pytest.mark.parametrize("size", [2, 5000, LARGE])
def test_a_number_and_its_complement_differ(size: int) -> None:
    """Cells of memory that hold only zeros, or only ones."""
    zeros = torch.zeros(size, dtype=torch.int64)
    one = zeros.clone()
    one[size // 2] = -1
    assert len({digest_of(zeros), digest_of(~zeros), digest_of(one)}) == 3


def test_where_pieces_are_taken_several_at_once_the_digest_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = filled(40 * tensors._PIECE_WORDS + 77, torch.int64)
    one_by_one = tensors._sums(words)
    assert len(one_by_one) == 41
    monkeypatch.setattr(tensors, "_at_once", lambda _device: 16)
    assert torch.equal(tensors._sums(words), one_by_one)


def many() -> list[torch.Tensor]:
    """Return small ones of more than two pieces altogether, with a large one between them."""
    small = [filled(50_000 + number) + number for number in range(12)]
    odd = [torch.ones(3, dtype=torch.bool), torch.zeros(()), filled(7, torch.bfloat16)]
    return [*small[:6], *odd, filled(LARGE), *small[6:]]


@pytest.mark.parametrize("changed", [0, 5, 6, 7, 8, 9, 15])
def test_every_one_of_many_counts_at_both_ends(changed: int) -> None:
    before = digest_of(many())
    assert before == digest_of(many())
    for position in (0, -1):
        others = many()
        others[changed].view(-1).view(torch.uint8)[position] ^= 1
        assert digest_of(others) != before


def test_places_of_many_count() -> None:
    one, other, none = torch.zeros(3), torch.ones(3), torch.empty(3, device="meta")
    assert digest_of([one, other]) != digest_of([other, one])
    assert digest_of([none, other]) != digest_of([other, none])
    halves = torch.ones(2).split(1)
    assert digest_of(list(halves)) != digest_of([torch.ones(2)])


def test_what_lies_elsewhere_in_memory_is_left_alone() -> None:
    whole = many()
    copies = [one.clone() for one in whole]
    digest_of(whole)
    assert all(torch.equal(one, other) for one, other in zip(whole, copies, strict=True))


def test_type_and_shape_count() -> None:
    assert digest_of(torch.zeros(4)) != digest_of(torch.zeros(2, 2))
    assert digest_of(torch.zeros(4)) != digest_of(torch.zeros(4, dtype=torch.int32))


def test_it_is_content_that_counts_not_how_it_lies_in_memory() -> None:
    whole = filled(600 * 500).reshape(600, 500)
    assert digest_of(whole.t()) == digest_of(whole.t().contiguous())
    assert digest_of(whole.reshape(-1)[1:]) == digest_of(whole.reshape(-1)[1:].clone())
    complex_one = torch.complex(filled(10), filled(10))
    assert digest_of(complex_one.conj()) == digest_of(complex_one.conj().resolve_conj())


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_meta_and_wrapped_tensors() -> None:
    dense = torch.eye(3)
    assert digest_of(dense.to_sparse()) == digest_of((dense * 1).to_sparse())
    assert digest_of(dense.to_sparse()) != digest_of((dense * 2).to_sparse())
    meta = torch.empty(5, device="meta")
    assert digest_of(meta) == digest_of(meta.clone())
    nested = [
        torch.nested.nested_tensor([torch.full((2,), one), torch.ones(3)], layout=torch.jagged)
        for one in (1.0, 1.0, 2.0)
    ]
    assert digest_of(nested[0]) == digest_of(nested[1]) != digest_of(nested[2])
    with pytest.raises(ValueError, match="layout"):
        digest_of(dense.to_sparse_csr())


def test_random_numbers_of_the_program_are_left_alone() -> None:
    tensors._weights.clear()
    before = torch.get_rng_state()
    digest_of(filled())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_what_is_not_finite_is_found(bad: float, dtype: torch.dtype) -> None:
    good = torch.ones(1000, dtype=dtype)
    assert tensors.finite([good, torch.ones(0), torch.arange(3)])
    spoilt = good.clone()
    spoilt[500] = bad
    assert not tensors.finite([good, spoilt])


def test_large_finite_numbers_are_finite() -> None:
    assert tensors.finite([torch.full((100,), 65504, dtype=torch.float16)])


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def trained(steps: int, optimizer: type[Any] = torch.optim.AdamW) -> tuple[nn.Module, Any]:
    model = network()
    chosen = optimizer(model.parameters(), lr=0.1)
    for step in range(steps):
        chosen.zero_grad()
        model(torch.full((2, 3), float(step))).sum().backward()
        chosen.step()
    return model, chosen


def test_parts_of_a_module() -> None:
    model, _ = trained(1)
    parts = module_parts(model)
    assert list(parts) == ["parameters", "buffers"]
    assert parts == module_parts(trained(1)[0])
    assert parts["parameters"] != module_parts(network())["parameters"]
    assert list(module_parts(nn.Linear(2, 2))) == ["parameters"]


def test_modules_that_get_their_shape_later() -> None:
    assert module_parts(nn.LazyLinear(2)) == module_parts(nn.LazyLinear(2))


def test_buffers_that_no_checkpoint_holds_are_left_out() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("cache", torch.zeros(3), persistent=False)
    assert "buffers" not in module_parts(model)


def test_buffers_that_the_next_pass_replaces_are_left_out() -> None:
    class Group:
        def rank(self) -> int:
            return 1

    model = nn.BatchNorm1d(2)
    model.broadcast_buffers = True
    model.process_group = Group()
    assert "buffers" not in module_parts(model)


def test_an_optimizer_that_was_saved_and_loaded_has_the_digest_it_had() -> None:
    model, optimizer = trained(2)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    other_model, other = trained(0)
    assert optimizer_digest(other) != optimizer_digest(optimizer)
    for target, state in zip((other_model, other), torch.load(file), strict=True):
        target.load_state_dict(state)
    assert optimizer_digest(other) == optimizer_digest(optimizer)
    other.param_groups[0]["lr"] = 0.2
    assert optimizer_digest(other) != optimizer_digest(optimizer)


def test_looking_at_an_optimizer_makes_no_state() -> None:
    _, optimizer = trained(0)
    optimizer_digest(optimizer)
    assert not optimizer.state


def test_parts_of_what_a_script_gives() -> None:
    model, optimizer = trained(1)
    assert parts_of(optimizer) == {"optimizer": optimizer_digest(optimizer)}
    parts = parts_of({"net": model, "adam": optimizer, "loss": torch.tensor(1.5), "epoch": 3})
    assert list(parts) == [
        "net.parameters",
        "net.buffers",
        "adam.optimizer",
        "loss",
        "epoch",
    ]
    assert parts_of([model, 1]) == {"state": digest_of([model, 1])}


def test_numpy_arrays_by_type_shape_and_content() -> None:
    numpy = pytest.importorskip("numpy")
    assert digest_of(numpy.arange(4)) == digest_of(numpy.arange(4))
    assert digest_of(numpy.arange(4)) != digest_of(numpy.arange(4).reshape(2, 2))
    assert digest_of(numpy.float32(1)) != digest_of(numpy.float64(1))
    assert digest_of(numpy.array(["a", 1], dtype=object)) == digest_of(
        numpy.array(["a", 1], dtype=object)
    )
