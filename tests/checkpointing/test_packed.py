"""Tensors of classes that keep their values in a way of their own come back as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from undaunted.checkpointing import Checkpointer, SaveError
from undaunted.checkpointing.async_ckpt import core
from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)
from undaunted.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.distributed is")]


class Stubborn(torch.Tensor):
    """Packs its values, and has nothing but them: no copy to the CPU, no pickle."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func is torch.ops.aten.is_pinned.default:
            return False
        raise NotImplementedError(f"{func} of {cls.__name__}")


class Sparing(TwoTensor):  # type: ignore[misc]
    """Does not know what planning asks of a tensor."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.is_pinned.default:
            raise NotImplementedError(f"{func} of {cls.__name__}")
        return super().__torch_dispatch__(func, types, args, kwargs)


class WithMoments(torch.optim.Optimizer):
    """Has two moments in one tensor."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            old = self.state[parameter].get("moments", two(0, 0, parameter.shape))
            self.state[parameter]["moments"] = TwoTensor(old.a + 1, old.b + 2)


@pytest.fixture(autouse=True)
def _allowed() -> Iterator[None]:
    with torch.serialization.safe_globals([TwoTensor]):
        yield


def two(one: float, other: float, shape: Any = (2,)) -> Any:
    return TwoTensor(torch.full(shape, float(one)), torch.full(shape, float(other)))


def both(tensor: Any) -> list[Any]:
    assert type(tensor) is TwoTensor
    return [tensor.a.tolist(), tensor.b.tolist()]


def saved(folder: Path, state: dict[str, Any]) -> Path:
    with Checkpointer(folder, timeout=60) as checkpoints:
        checkpoints.save(1, state)
    return folder / "step-00000001"


def loaded(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    with Checkpointer(folder, timeout=60) as checkpoints:
        assert checkpoints.load(state) == 1
    return state


def test_they_are_filled_in_place_and_read_by_torch(tmp_path: Path) -> None:
    step = saved(tmp_path, {"w": two(1, 5), "n": {"x": [two(2, 3), torch.ones(2)]}})
    mine, listed = two(0, 0), two(0, 0)
    loaded(tmp_path, {"w": mine, "n": {"x": [listed, torch.zeros(2)]}})
    assert both(mine) == [[1, 1], [5, 5]]
    assert both(listed) == [[2, 2], [3, 3]]
    fresh = {"w": two(0, 0)}
    dcp.load(fresh, checkpoint_id=step)
    assert both(fresh["w"]) == [[1, 1], [5, 5]]


def test_of_a_class_that_knows_few_operations(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Sparing]):
        saved(tmp_path, {"w": Sparing(torch.ones(2), torch.zeros(2)), "x": two(1, 5)})
        state = {"w": Sparing(torch.zeros(2), torch.ones(2)), "x": two(0, 0)}
        loaded(tmp_path, state)
    assert [state["w"].a.tolist(), state["w"].b.tolist()] == [[1, 1], [0, 0]]
    assert both(state["x"]) == [[1, 1], [5, 5]]


def test_of_modules_and_optimizers(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    model.register_buffer("packed", two(1, 5))
    other.register_buffer("packed", two(0, 0))
    optimizer, fresh = WithMoments(model.parameters()), WithMoments(other.parameters())
    optimizer.step()
    optimizer.step()
    saved(tmp_path, {"model": model, "optimizer": optimizer})
    loaded(tmp_path, {"model": other, "optimizer": fresh})
    assert both(other.packed) == [[1, 1], [5, 5]]
    assert both(fresh.state[other.weight]["moments"]) == [[[2, 2]] * 2, [[4, 4]] * 2]


def test_none_becomes_another_class(tmp_path: Path) -> None:
    """Neither an ordinary tensor that was packed when saved, nor the reverse."""
    saved(tmp_path, {"packed": two(1, 5), "plain": torch.ones(2)})
    state = loaded(tmp_path, {"packed": torch.zeros(2), "plain": two(7, 8)})
    assert both(state["packed"]) == [[1, 1], [5, 5]]
    assert type(state["plain"]) is torch.Tensor
    assert state["plain"].tolist() == [1, 1]


def test_a_class_that_changes_between_saves(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, timeout=60) as checkpoints:
        for step, tensor in enumerate((torch.ones(2), two(1, 5), torch.zeros(2), two(3, 4))):
            checkpoints.save(step, {"w": tensor})
        checkpoints.wait()
        state = {"w": two(0, 0)}
        checkpoints.load(state, step=1)
        assert both(state["w"]) == [[1, 1], [5, 5]]
        checkpoints.load(state, step=3)
        assert both(state["w"]) == [[3, 3], [4, 4]]


def test_what_could_not_be_loaded_is_refused_at_the_save(tmp_path: Path) -> None:
    torch.serialization.clear_safe_globals()
    with Checkpointer(tmp_path, timeout=60) as checkpoints:
        with pytest.raises(SaveError, match=r"m\.w is a TwoTensor(?s:.*)add_safe_globals"):
            checkpoints.save(1, {"m": {"w": two(1, 5)}})
        with pytest.raises(SaveError, match=r"m\.w is a Stubborn"):
            checkpoints.save(2, {"m": {"w": Stubborn(torch.ones(2))}})
        checkpoints.save(3, {"m": {"w": torch.ones(2)}})
        checkpoints.wait()
        assert checkpoints.latest() == 3


def test_through_the_writer_of_familiar_name(tmp_path: Path) -> None:
    state = {"w": two(1, 5), "x": torch.ones(3)}
    writer = FileSystemWriterAsync(tmp_path / "c")
    planned = save_state_dict_async_plan(state, writer)
    function, preload, arguments = writer.get_save_function_and_args()
    queue = AsyncCallsQueue()
    try:
        finish = [lambda: save_state_dict_async_finalize(*planned)]
        queue.schedule_async_request(
            AsyncRequest(function, tuple(arguments), finish, preload_fn=preload)
        )
        queue.maybe_finalize_async_calls(blocking=True)
    finally:
        queue.close(abort=True)
        core.close_pool()
    fresh = {"w": two(0, 0), "x": torch.zeros(3)}
    dcp.load(fresh, checkpoint_id=tmp_path / "c")
    assert both(fresh["w"]) == [[1, 1], [5, 5]]


def test_beside_training_with_torch_save(tmp_path: Path) -> None:
    tensor, file = two(1, 5), tmp_path / "x.pt"
    checkpoint = TorchAsyncCheckpoint()
    checkpoint.async_save({"w": tensor}, file)
    tensor.a.zero_()
    checkpoint.finalize_async_save(blocking=True, terminate=True)
    assert both(torch.load(file)["w"]) == [[1, 1], [5, 5]]


@pytest.mark.parametrize("kind", ["int8", "float8", "nf4", "adam"])
def test_those_of_torchao(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    pytest.importorskip("torchao", reason="torchao is not installed")
    old, new = of_torchao(kind, 0), of_torchao(kind, 1)
    saved(tmp_path, {"x": old})
    loaded(tmp_path, {"x": new})
    assert parts_of(new.state_dict()) == parts_of(old.state_dict())


def of_torchao(kind: str, seed: int) -> Any:
    import torchao.optim
    from torchao import quantization

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64, bias=False))
    if kind == "adam":
        optimizer = torchao.optim.AdamW8bit(model.parameters())
        if seed == 0:
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
        return optimizer
    if kind == "nf4":
        from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

        packed = to_nf4(model[0].weight.detach(), 32, 32)
        model[0].weight = nn.Parameter(packed, requires_grad=False)
        return model
    int8 = kind == "int8"
    config = quantization.Int8WeightOnlyConfig if int8 else quantization.Float8WeightOnlyConfig
    quantization.quantize_(model, config())
    return model


def parts_of(value: Any) -> Any:
    """What a state is made of, for a comparison."""
    if isinstance(value, dict):
        return {key: parts_of(one) for key, one in value.items()}
    if isinstance(value, list):
        return [parts_of(one) for one in value]
    if hasattr(value, "__tensor_flatten__"):
        inner = {name: parts_of(getattr(value, name)) for name in value.__tensor_flatten__()[0]}
        return type(value).__name__, inner
    return value.tolist() if isinstance(value, torch.Tensor) else value
