"""Durations as people write them on a command line."""

from __future__ import annotations

import math

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_OFF = frozenset({"", "none", "null"})


def parse_seconds(text: str) -> float:
    """Read a duration.

    Args:
        text: a number of seconds, or a number with one of the units ms, s, m (min), h, d.

    Returns:
        Seconds, finite and not negative.

    Raises:
        ValueError: the text is something else.
    """
    cleaned = text.strip().lower()
    number = cleaned.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = cleaned[len(number) :] or "s"
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(
            f"{text!r} is not a duration; give seconds (90) or a unit (500ms, 15m, 2h)"
        )
    return seconds


def parse_optional_seconds(text: str) -> float | None:
    """Read a duration that may be off: ``none``, ``null`` (any case) or nothing gives None.

    Raises:
        ValueError: neither off nor a duration.
    """
    if text.strip().lower() in _OFF:
        return None
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ValueError(f"{error}, or none to turn it off") from None


def parse_limit(text: str) -> float | None:
    """Read a timeout: like :func:`parse_optional_seconds`, but 0 is refused, not taken for "off".

    Raises:
        ValueError: neither off nor a positive duration.
    """
    seconds = parse_optional_seconds(text)
    if seconds == 0:
        raise ValueError("0 would expire at once; give a positive duration, or none to turn it off")
    return seconds
