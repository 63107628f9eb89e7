"""Which attribution service is asked, from the two ways to name one."""

from __future__ import annotations

from undaunted.cli.ft_options import option_name
from undaunted.cli.parse import Parsed, UsageError
from undaunted.fault_tolerance import config_values

_ENDPOINT = option_name("attribution_endpoint")
_HOST = option_name("attrsvc_host")
_PORT = option_name("attrsvc_port")
_ACTION = option_name("attribution_stop_action")


def service(parsed: Parsed) -> str:
    """Return the URL of the service, "" = none.

    Raises:
        UsageError: what is given is not enough, contradicts itself or is not built yet.
    """
    values = parsed.values
    by_parts = _from_host_and_port(parsed)
    url: str = values[_ENDPOINT] or by_parts
    if by_parts and url != by_parts:
        raise UsageError(
            f"{parsed.sources[_ENDPOINT]} {url} and {parsed.sources[_HOST]} {values[_HOST]} name "
            "two services; keep one of them"
        )
    if url == "localhost":
        raise UsageError(
            f"{parsed.sources[_ENDPOINT]} localhost asks for a service that the launcher starts "
            "itself, which is not built yet; start one and give http://127.0.0.1:PORT"
        )
    if values[_ACTION] and not url:
        raise UsageError(
            f"{parsed.sources[_ACTION]} needs a service: add --{_ENDPOINT} http://HOST:PORT"
        )
    return url


def _from_host_and_port(parsed: Parsed) -> str:
    host, port = parsed.values[_HOST], parsed.values[_PORT]
    if host is None and port is None:
        return ""
    given, missing = (_PORT, _HOST) if host is None else (_HOST, _PORT)
    source = parsed.sources[given]
    if parsed.values[missing] is None:
        raise UsageError(f"{source} alone names no service; add --{missing}")
    try:
        return config_values.service(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    except ValueError:
        raise UsageError(f"{source}: {host!r} is not the name or address of a host") from None
