"""undaunted keeps PyTorch training running through crashes and hangs, and says what happened.

A training program tells what it is doing:

    import undaunted

    for iteration in range(start, end):
        undaunted.step(iteration)
        with undaunted.section("checkpoint"):
            save()

and is started with ``undaunted run``. Nothing is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.coordinator.epoch import round_epoch as round_epoch
    from undaunted.progress.api import event as event
    from undaunted.progress.api import heartbeat as heartbeat
    from undaunted.progress.api import section as section
    from undaunted.progress.api import step as step

__version__ = "0.1.0"

__all__ = ["__version__", "event", "heartbeat", "round_epoch", "section", "step"]


def __getattr__(name: str) -> object:
    if name in ("event", "heartbeat", "section", "step"):
        from undaunted.progress import api

        value = globals()[name] = getattr(api, name)
        return value
    if name == "round_epoch":
        from undaunted.coordinator import epoch

        value = globals()[name] = epoch.round_epoch
        return value
    raise AttributeError(f"module 'undaunted' has no attribute {name!r}")
