from __future__ import annotations

import pytest

from tests.doctor.checks.saying import said, wanting
from undaunted.doctor.checks import environment


@pytest.mark.parametrize(
    ("name", "value", "row"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", ("E01", "warn")),
        ("NCCL_BLOCKING_WAIT", "0", ("E03", "warn")),
        ("TORCH_NCCL_BLOCKING_WAIT", "True", ("E04", "warn")),
        ("TORCH_NCCL_ENABLE_MONITORING", "0", ("E06", "info")),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "3600", ("E07", "info")),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", ("E08", "warn")),
        ("NCCL_IB_TIMEOUT", "14", ("E16", "warn")),
        ("NCCL_IB_RETRY_CNT", "3", ("E16", "warn")),
        ("NCCL_DEBUG", "trace", ("E17", "warn")),
        ("NCCL_TIMEOUT", "600", ("E18", "warn")),
        ("NCCL_ALGO", "Ring", ("E19", "warn")),
        ("GLOO_SOCKET_IFNAME", "^lo,docker", ("E20", "fail")),
        ("PYTORCH_CUDA_ALLOC_CONF", "a:1,expandable_segments:True", ("E21", "info")),
        ("CUDA_LAUNCH_BLOCKING", "1", ("E22", "warn")),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5", ("E24", "warn")),
    ],
)
def test_variables_that_hurt(name: str, value: str, row: tuple[str, str]) -> None:
    assert said(environment, environ={name: value}) == [(*row, f"{name}={value}")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "480"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_IB_TIMEOUT", "many"),
        ("NCCL_DEBUG", "WARN"),
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "nan"),
        ("NOTHING_KNOWN", "1"),
    ],
)
def test_variables_that_do_not(name: str, value: str) -> None:
    assert said(environment, environ={name: value}) == []


def test_variables_of_restart_inside_the_process() -> None:
    asked = wanting("inprocess")
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert said(environment, asked, environ={name: "0"}) == []
    assert said(environment, asked, environ={name: "3"}) == [("E01", "warn", f"{name}=3")]
    unset = {row[0] for row in said(environment, asked, versions={"nccl": "2.28.9"})}
    assert unset >= {"E05", "E15"}
    assert said(environment, asked) == []  # without NCCL these do not matter


def test_values_are_shown_safely() -> None:
    ((_, _, found),) = said(environment, environ={"NCCL_ALGO": "\x1b[2J\n" + "x" * 9999})
    assert found.isprintable()
    assert len(found) < 600
