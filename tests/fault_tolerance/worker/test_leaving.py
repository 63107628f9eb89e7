from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from undaunted.fault_tolerance.worker import leaving


@pytest.mark.parametrize("there", [True, False])
def test_frozen_objects_are_collected_only_where_triton_would_complain(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    if there:
        monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    calls: list[bool] = []
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append(True))
    leaving.leave()
    assert calls == [True] * there
