"""The arguments of `Checkpointer`. Errors name the argument, its value and its range. Pure."""

from __future__ import annotations

import operator
from typing import Literal

OnFailure = Literal["raise", "retry", "warn"]
Differing = Literal["refuse", "warn"]
_DIFFERING = ("refuse", "warn")
# How often a save is tried.
ATTEMPTS = {"raise": 1, "retry": 3, "warn": 1}
_MOST_THREADS = 64
_STEPS_END = 1 << 63


def check_settings(
    keep: int | None,
    keep_every: int | None,
    on_failure: str,
    differing: str,
    slots: int,
    timeout: float,
    threads: int,
) -> None:
    """Refuse settings that make no sense; they are those of `Checkpointer`.

    Raises:
        TypeError: ``timeout`` is not a number.
        ValueError: one is out of its range.
    """
    if not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout={timeout!r}: seconds, and not None, as every wait has an end")
    if not 1 <= threads <= _MOST_THREADS:
        raise ValueError(f"threads={threads}: 1 to {_MOST_THREADS}")
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: at least 1 checkpoint is kept; None keeps all")
    if keep_every is not None and keep_every < 1:
        raise ValueError(f"keep_every={keep_every}: must be at least 1")
    if on_failure not in ATTEMPTS:
        raise ValueError(f"on_failure={on_failure!r}: one of {', '.join(ATTEMPTS)}")
    if differing not in _DIFFERING:
        raise ValueError(f"differing={differing!r}: one of {', '.join(_DIFFERING)}")
    if slots not in (1, 2):
        raise ValueError(f"slots={slots}: 1 or 2")
    if timeout <= 0:
        raise ValueError(f"timeout={timeout}: seconds, more than 0")


def check_every(every: int | str | None) -> None:
    """Refuse what `Checkpointer` may not be given as ``every``.

    Raises:
        ValueError: it is neither a number of steps nor "continuous".
    """
    if every is None or every == "continuous":
        return
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f'every={every!r}: a number of steps from 1, or "continuous"')


def check_certifying(certify: int | None, keep_certified: int) -> None:
    """Refuse settings that make no sense; they are those of `Checkpointer`.

    Raises:
        ValueError: one is out of its range.
    """
    if certify is not None and certify < 1:
        raise ValueError(f"certify={certify}: every so many saves, at least 1; None = never")
    if keep_certified < 1:
        raise ValueError(f"keep_certified={keep_certified}: at least 1, the newest is always kept")


def step_number(step: int) -> int:
    """Return the number of a step as an integer of Python, also of NumPy and torch.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative, or larger than 63 bits hold.
    """
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"step={step!r}: the number of a step is an integer, not a {type(step)}")
    step = operator.index(step)
    if not 0 <= step < _STEPS_END:
        raise ValueError(f"step={step}: the number of a step is at least 0 and below 2**63")
    return step
