from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN
from undaunted.cli.settings import metrics
from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE, MetricsConfig

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

TOKEN = "0123456789abcdef"


def chosen(line: str, **environ: str) -> MetricsConfig | None:
    return metrics(RUN.parse([*line.split(), "train.py"], environ), environ, "/work")


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


def test_nothing_unless_asked_for() -> None:
    assert chosen("") is None


def test_on_this_machine_no_token_is_needed() -> None:
    assert chosen("--metrics-port 9400") == MetricsConfig(port=9400)
    assert chosen("--metrics-port 0 --metrics-address ::1") == MetricsConfig(port=0, address="::1")
    assert chosen("--metrics-port 0 --metrics-address localhost") == MetricsConfig(port=0)
    assert chosen("", PET_METRICS_PORT="7") == MetricsConfig(port=7)


def test_for_other_machines_a_token_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "--metrics-port 9400 --metrics-address 0.0.0.0"
    path = token_file(tmp_path)
    config = chosen(f"{line} --metrics-token-file {path}")
    assert config == MetricsConfig(port=9400, address="0.0.0.0", token_file=str(path))
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert chosen(line) == MetricsConfig(port=9400, address="0.0.0.0")


def test_a_token_that_others_can_read(tmp_path: Path) -> None:
    path = token_file(tmp_path)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        chosen(f"--metrics-port 0 --metrics-token-file {path}")


def test_collectors() -> None:
    assert chosen("--otlp-endpoint http://c:4318") == MetricsConfig(otlp_endpoint="http://c:4318")
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert chosen("--otlp-endpoint env", **environ) == MetricsConfig(otlp_endpoint="env")
    assert chosen("", **environ) is None  # nobody has asked


@pytest.mark.parametrize(
    ("line", "package", "message"),
    [
        ("--metrics-port 0", "prometheus_client", r"--metrics-port needs .*undaunted\[metrics\]"),
        ("--otlp-endpoint http://c", "opentelemetry", r"--otlp-endpoint needs .*undaunted\[otlp\]"),
    ],
)
def test_without_the_package(
    line: str, package: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # cannot be imported
    with pytest.raises(UsageError, match=message):
        chosen(line)
