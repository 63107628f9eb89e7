"""`torch.save` beside training."""

from __future__ import annotations

import argparse
import io
import stat
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from undaunted.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint  # noqa: E402
from undaunted.checkpointing.errors import SaveError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


@pytest.fixture
def checkpoint() -> Iterator[TorchAsyncCheckpoint]:
    made = TorchAsyncCheckpoint()
    yield made
    made.close(abort=True)


def test_content_is_fixed_when_the_call_returns(
    checkpoint: TorchAsyncCheckpoint, tmp_path: Path
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    arguments = argparse.Namespace(lr=[0.1])
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "args": arguments}
    weight = model.weight.detach().clone()
    checkpoint.async_save(state, tmp_path / "c.pt")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
            optimizer.state[parameter]["step"].fill_(-1)
            optimizer.state[parameter]["exp_avg"].fill_(-1)
    optimizer.param_groups[0]["lr"] = -1
    arguments.lr.append(0.2)
    checkpoint.finalize_async_save(blocking=True)
    loaded = torch.load(tmp_path / "c.pt", weights_only=False)
    assert torch.equal(loaded["model"]["weight"], weight)
    assert loaded["optimizer"]["state"][0]["step"] == 1
    assert loaded["optimizer"]["state"][0]["exp_avg"].min() >= 0
    assert loaded["optimizer"]["param_groups"][0]["lr"] > 0
    assert loaded["args"].lr == [0.1]


def test_saves_here_and_now_and_to_streams(
    checkpoint: TorchAsyncCheckpoint, tmp_path: Path
) -> None:
    checkpoint.save({"a": 1}, tmp_path / "c.pt")
    checkpoint.save({"a": 2}, f=str(tmp_path / "d.pt"))
    stream = io.BytesIO()
    checkpoint.save({"a": 3}, stream)
    stream.seek(0)
    read = [torch.load(one)["a"] for one in (tmp_path / "c.pt", tmp_path / "d.pt", stream)]
    assert read == [1, 2, 3]
    assert stat.S_IMODE((tmp_path / "c.pt").stat().st_mode) == 0o600


def test_a_save_that_fails_leaves_the_former_file_and_the_next_one_works(
    checkpoint: TorchAsyncCheckpoint, tmp_path: Path
) -> None:
    checkpoint.save({"a": 1}, tmp_path / "c.pt")
    checkpoint.async_save({"a": print, "b": (one for one in ())}, tmp_path / "c.pt")
    with pytest.raises(SaveError, match="rank 0"):
        checkpoint.finalize_async_save(blocking=True)
    assert torch.load(tmp_path / "c.pt") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]
    checkpoint.async_save({"a": 2}, tmp_path / "c.pt")
    checkpoint.finalize_async_save(blocking=True, terminate=True)
    assert torch.load(tmp_path / "c.pt") == {"a": 2}


def test_a_folder_that_is_missing_is_an_error_and_no_hang(
    checkpoint: TorchAsyncCheckpoint, tmp_path: Path
) -> None:
    checkpoint.async_save({"a": 1}, tmp_path / "missing" / "c.pt")
    with pytest.raises(SaveError, match=r"missing/\.c\.pt") as caught:
        checkpoint.close()
    assert caught.value.errno == 2
