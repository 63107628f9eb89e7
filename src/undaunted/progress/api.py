"""The calls by which a training program says what it does: `undaunted.heartbeat` and friends.

All of these are a few memory stores: no lock, nothing that can block or raise.
Without a launcher they do nothing that anybody sees, and say so once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.progress import writer as _writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.progress.section import Section

on_step: Callable[[object, object], object] | None = None
"""Called by every step with its iteration and digest, before anything else. For digests."""


def heartbeat() -> None:
    """Say that this rank makes progress. Call it about once per iteration, or more often."""
    _writer.current.heartbeat()


def step(iteration: int, digest: object = None) -> None:
    """Say that an iteration begins; counts as a heartbeat.

    Args:
        iteration: its number, from 0; after a restart the number of the iteration resumed at. With
            anything else the call is a heartbeat only, and the first such call is warned of.
        digest: state that a resumed run must have as well when this iteration begins: a module, an
            optimizer, an object with ``state_dict()``, a tensor, numbers or text, or a dictionary
            of these. Nobody looks at it except under ``undaunted chaos``.
    """
    if on_step is not None:
        on_step(iteration, digest)
    _writer.current.step(iteration)


def section(name: str) -> Section:
    """Return a context manager for a named stretch of the program.

    Sections may nest and overlap, and each is held to its own limit. 31 different names of up to 64
    bytes are kept apart; what goes beyond is watched as one section named ``(others)``.

    Args:
        name: as in ``--ft-rank-section-timeouts``, for example ``checkpoint``.

    Example:
        >>> with undaunted.section("checkpoint"):
        ...     save()
    """
    return _writer.current.section(name)


def event(name: str, text: str = "") -> None:
    """Put a small event into the journal of the run.

    Args:
        name: what kind of event, up to 64 bytes.
        text: up to 220 bytes together with the name; what is longer is cut.
    """
    _writer.current.event(name, text)
