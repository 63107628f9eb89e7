from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.torch

from undaunted.integrations.megatron.call_store import CallStore  # noqa: E402


def test_torch_reaches_the_store_of_the_call() -> None:
    store, own = CallStore(), dist.HashStore()
    store.call = SimpleNamespace(store=own)
    seen = dist.PrefixStore("3", store)
    seen.set("a", "1")
    assert own.get("3/a") == seen.get("a") == b"1"
    assert seen.add("n", 2) == 2
    assert seen.compare_set("a", "1", "2") == b"2"
    seen.append("a", "3")
    assert seen.check(["a"])
    seen.wait(["a"])
    seen.wait(["a"], timedelta(seconds=1))
    seen.multi_set(["x", "y"], ["1", "2"])
    assert seen.multi_get(["x", "y"]) == [b"1", b"2"]
    assert seen.num_keys() == own.num_keys()
    assert seen.delete_key("a")
    assert not own.check(["3/a"])


def test_outside_of_a_call_there_is_none() -> None:
    with pytest.raises(RuntimeError, match="in the function that is restarted only"):
        CallStore().get("a")
