"""Time at the beginning of a line, by which messages of several processes are put in order."""

from __future__ import annotations

import re
import time

# 2026-11-21T07:00:12.345678Z, always so long: the texts have the order of the times.
STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ")
STAMP_BYTES = 28


def stamp(seconds: float) -> str:
    """Return a time (`time.time`) as it stands at the beginning of a line, in UTC."""
    micros = int(seconds * 1e6)
    clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(micros // 1_000_000))
    return f"{clock}.{micros % 1_000_000:06d}Z"
