from __future__ import annotations

import pytest

pytest.importorskip("torch")

from undaunted.checkpointing.dcp import torch_private

pytestmark = pytest.mark.torch


def test_what_torch_no_longer_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.checkpoint import filesystem

    info = torch_private.storage_info("name", 1, 2)
    assert (info.relative_path, info.offset, info.length) == ("name", 1, 2)
    monkeypatch.delattr(filesystem, "_StorageInfo")
    with pytest.raises(RuntimeError, match=r"_StorageInfo any more.*use torch 2\.13"):
        torch_private.storage_info("name", 1, 2)
