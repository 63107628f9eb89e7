from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from undaunted.inprocess.core.messages import Limits
from undaunted.inprocess.wrap import Wrapper

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def test_the_defaults_are_those_of_the_protocol() -> None:
    assert Wrapper().limits() == Limits()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("store_factory", 3, "a callable or None, not 3"),
        ("store_kwargs", [], "dict or None, not [] of type list"),
        ("initialize", 3, "Initialize or another callable or None, not 3 of type int"),
        ("abort", int, "Abort or another callable or None"),
        ("rank_assignment", None, "RankAssignment or another callable, not None"),
        ("soft_timeout", 60, "timedelta, not 60 of type int"),
        ("last_call_wait", None, "timedelta, not None"),
        ("monitor_process_logfile", b"/a", "str or None"),
        ("enabled", 1, "bool, not 1"),
        ("max_identical_faults", "3", "int"),
    ],
)
def test_wrong_types(name: str, value: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        Wrapper(**{name: value})
    assert str(caught.value).startswith(f"{name} must be ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "condition"),
    [
        ({"soft_timeout": 90}, "soft_timeout < hard_timeout < barrier_timeout"),
        ({"barrier_timeout": 80}, "soft_timeout < hard_timeout < barrier_timeout"),
        ({"heartbeat_timeout": 120}, "heartbeat_interval < heartbeat_timeout < barrier_timeout"),
        ({"heartbeat_interval": 30}, "heartbeat_interval < heartbeat_timeout < barrier_timeout"),
        ({"progress_watchdog_interval": 60}, "progress_watchdog_interval < soft_timeout"),
    ],
)
def test_relations(changed: dict[str, int], condition: str) -> None:
    durations = {name: timedelta(seconds=seconds) for name, seconds in changed.items()}
    with pytest.raises(ValueError, match=condition) as caught:
        Wrapper(**durations)  # type: ignore[arg-type]
    assert all(f"{name}={value!r}" in str(caught.value) for name, value in durations.items())


def test_what_is_not_used_is_not_in_the_way() -> None:
    long = timedelta(seconds=1000)
    Wrapper(monitor_process_interval=long, monitor_thread_interval=long)


@pytest.mark.parametrize("name", ["monitor_process_logfile", "monitor_process_pidfile"])
def test_paths_are_absolute(name: str) -> None:
    assert getattr(Wrapper(**{name: "/tmp/{rank}.log"}), name) == "/tmp/{rank}.log"
    with pytest.raises(ValueError, match=rf"os.path.isabs\({name}\)"):
        Wrapper(**{name: "{rank}.log"})


def test_any_callable_is_a_plug_in() -> None:
    assert Wrapper(finalize=print).finalize is print


def test_torch_without_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed

    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"torch.distributed.is_available\(\)"):
        Wrapper()
