"""Where a launcher's metrics go, from what the command line says together."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.cli.metrics_options import ADDRESS, CERT, KEY, OTLP, PORT, TOKEN
from undaunted.cli.parse import Parsed, UsageError
from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE, MetricsConfig
from undaunted.journal.metrics import exposition, otlp

if TYPE_CHECKING:
    from collections.abc import Mapping


def metrics(parsed: Parsed, environ: Mapping[str, str], cwd: str) -> MetricsConfig | None:
    """Return what is chosen for metrics, None = nobody wants any.

    Raises:
        UsageError: something is missing or contradicts itself.
    """
    given = parsed.values
    if given[PORT] is None:
        for name in (ADDRESS, TOKEN, CERT, KEY):
            if name in parsed.sources:
                raise UsageError(f"{parsed.sources[name]} is of no use without --{PORT}")
    elif not exposition.is_possible():
        raise UsageError(f"{parsed.sources[PORT]} {exposition.REMEDY}")
    if given[OTLP]:
        _check_otlp(parsed, environ)
    elif given[PORT] is None:
        return None
    config = MetricsConfig(
        port=given[PORT],
        address=given[ADDRESS],
        token_file=_path(given[TOKEN], cwd),
        tls_cert=_path(given[CERT], cwd),
        tls_key=_path(given[KEY], cwd),
        otlp_endpoint=given[OTLP] or "",
    )
    if config.port is not None:
        _check_secrets(config, parsed)
    return config


def _path(text: str | None, cwd: str) -> str:
    return str(Path(cwd, text)) if text else ""


def _check_otlp(parsed: Parsed, environ: Mapping[str, str]) -> None:
    source = parsed.sources[OTLP]
    if not otlp.is_possible():
        raise UsageError(f"{source} {otlp.REMEDY}")
    names = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if parsed.values[OTLP] == otlp.FROM_ENVIRONMENT and not any(map(environ.get, names)):
        raise UsageError(f"{source} {otlp.FROM_ENVIRONMENT}: {names[1]} is not set; set it")


def _check_secrets(config: MetricsConfig, parsed: Parsed) -> None:
    """Look at what was given, so that a mistake is said before any rank is started."""
    from undaunted.coordinator.wire.credentials import TlsError, TokenError
    from undaunted.fault_tolerance.metrics_access import secrets

    if bool(config.tls_cert) != bool(config.tls_key):
        raise UsageError(f"--{CERT} and --{KEY} are only of use together")
    try:
        token, _ = secrets(config)
    except TokenError as error:
        raise UsageError(f"{parsed.sources.get(TOKEN, TOKEN_VARIABLE)}: {error}") from None
    except TlsError as error:
        raise UsageError(f"{parsed.sources[CERT]}: {error}") from None
    if not token and not ipaddress.ip_address(config.address).is_loopback:
        raise UsageError(
            f"{parsed.sources[ADDRESS]} {config.address} can be reached from other machines: give "
            f"--{TOKEN}, or set {TOKEN_VARIABLE}"
        )
