"""The adapters of nvidia_resiliency_ext.inprocess."""

from __future__ import annotations

import importlib
import logging.handlers
import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess import param_utils, utils
from nvidia_resiliency_ext.inprocess.compose import Compose
from nvidia_resiliency_ext.inprocess.rank_filter import (
    ActiveWorldSizeDivisibleBy,
    MaxActiveWorldSize,
    RankFilter,
)
from nvidia_resiliency_ext.inprocess.state import Mode, State
from tests.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path


def test_modules_are_attributes_and_torch_waits_for_its_use() -> None:
    code = """
import sys
from nvidia_resiliency_ext import inprocess
inprocess.abort, inprocess.Compose, inprocess.nested_restarter, inprocess.tools.inject_fault
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@pytest.mark.torch
def test_every_name_is_there() -> None:
    pytest.importorskip("torch")
    for name in inprocess.__all__:
        assert getattr(inprocess, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = inprocess.nonsense


def test_old_and_new_place_of_faults() -> None:
    new = importlib.import_module("undaunted.shared_utils.inject_fault")
    assert inprocess.tools.inject_fault.Fault is new.Fault


def checked(interval: Any, limit: Any = timedelta(seconds=5)) -> None:
    param_utils.enforce_type("interval", (timedelta, type(None)))
    param_utils.enforce_value(interval is None or interval < limit)


def test_arguments_are_checked_by_name() -> None:
    checked(None)
    checked(timedelta(seconds=1))
    with pytest.raises(
        TypeError, match=r"interval must be an instance of timedelta or None, not 3"
    ):
        checked(3)
    with pytest.raises(ValueError, match=r"interval < limit must hold, but interval=.*limit="):
        checked(timedelta(seconds=5))


@pytest.mark.parametrize("factory", [dict])
def test_subclasses_are_checked_by_name(factory: type) -> None:
    param_utils.enforce_subclass("factory", dict)
    with pytest.raises(TypeError, match="factory must be a subclass of list or set, not"):
        param_utils.enforce_subclass("factory", (list, set))


def test_a_condition_without_source() -> None:
    names: dict[str, Any] = {"enforce_value": param_utils.enforce_value}
    exec("def check(a):\n    enforce_value(a)\n", names)
    with pytest.raises(ValueError, match="a condition must hold"):
        names["check"](False)


def test_lines_of_exceptions() -> None:
    state = State(3, 4)
    for who in (3, state, state.freeze()):
        line = utils.log_exc(who, ValueError("no"), "fn_ex")
        assert line.startswith("[2")
        assert line.endswith("] rank=3 fn_ex: ValueError('no')")


def test_the_nearest_handler() -> None:
    above, below = logging.getLogger("compat.above"), logging.getLogger("compat.above.below")
    first, second = logging.NullHandler(), logging.NullHandler()
    above.addHandler(first)
    try:
        assert utils.find_nearest_handler(below, logging.NullHandler) is first
        below.addHandler(second)
        assert utils.find_nearest_handler(below, logging.NullHandler) is second
        assert utils.find_nearest_handler(below, logging.handlers.MemoryHandler) is None
    finally:
        above.removeHandler(first)
        below.removeHandler(second)


WATCHED = """
from pathlib import Path
from nvidia_resiliency_ext import inprocess

@inprocess.Wrapper(store_kwargs={"port": PORT})
def train(call: inprocess.CallWrapper = None):
    guard, watchdog = call.monitor_process, call.progress_watchdog
    assert isinstance(guard, inprocess.monitor_process.MonitorProcess) and guard.is_alive()
    assert b"undaunted.inprocess.guard.program" in Path(f"/proc/{guard.pid}/cmdline").read_bytes()
    assert isinstance(watchdog, inprocess.progress_watchdog.ProgressWatchdog)
    watchdog.ping()
    assert watchdog.timestamp.manual >= watchdog.timestamp.auto
    watchdog.reset()
    assert watchdog.timestamp.manual is None
    return "watched"

print(train())
"""


@pytest.mark.e2e
@pytest.mark.torch
def test_who_watches_a_rank_and_what_is_seen() -> None:
    pytest.importorskip("torch")
    program = WATCHED.replace("PORT", str(free_ports(2)))
    named = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**named, **alone, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.stdout == "watched\n"


@pytest.mark.torch
def test_versions_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "__version__", "2.8.0+cpu")
    assert utils.torch_older_than("2.8.1")
    assert utils.torch_older_than("2.10")
    assert not utils.torch_older_than("2.8")
    assert not utils.torch_older_than("2.8.0")


@pytest.mark.torch
def test_prefixes_of_iterations(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    base = inprocess.store.FileStore(str(tmp_path / "store"), 1)
    inprocess.store.PrefixStore(3, base).set("key", "value")
    assert inprocess.store.PrefixStore("_inprocess_3", base).get("key") == b"value"
    assert isinstance(inprocess.store.PrefixStore(0, base), inprocess.store.StoreMixin)


def test_filters_of_ranks() -> None:
    both = Compose(ActiveWorldSizeDivisibleBy(2), MaxActiveWorldSize(5))
    assert isinstance(both, RankFilter)
    state = both(State(4, 8))
    assert (state.mode, state.active_rank, state.active_world_size) == (Mode.INACTIVE, None, 4)
    state = both(State(3, 8))
    assert (state.mode, state.active_rank, state.active_world_size) == (Mode.ACTIVE, 3, 4)
