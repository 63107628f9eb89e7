"""The order in which processes end when memory runs out: ``oom_score_adj`` in proc(5)."""

from __future__ import annotations

from pathlib import Path

_SELF = Path("/proc/self/oom_score_adj")
_MOST = 1000


def raise_own(by: int, path: Path = _SELF) -> int | None:
    """Offer this process to the kernel before others; children inherit it. Never raises.

    Args:
        by: in thousandths of the memory; every process may raise its own score.
        path: the file of this process.

    Returns:
        The score now, None where the system does not let it be changed.
    """
    try:
        score = min(_MOST, int(path.read_text(encoding="ascii")) + by)
        path.write_text(str(score), encoding="ascii")
    except (OSError, ValueError):
        return None
    return score
