"""The abort of the groups of each backend."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from undaunted.base.deadline import within
from undaunted.inprocess.communication import c10d, gloo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_log = logging.getLogger("undaunted")

DEADLINE_S = 30.0


def _nothing() -> None:
    """For groups that never wait for other ranks."""


# Backends that share a function are aborted by one call of it.
_aborts: dict[str, Callable[[], None]] = {
    "gloo": gloo.abort,
    **dict.fromkeys(("nccl", "nccl2", "nccl-lazy", "nccl-legacy"), c10d.abort_groups),
    "rccl": c10d.abort_groups,
    "xccl": c10d.abort_groups,
    "fake": _nothing,
}
_named: set[str] = set()  # backends without an abort, of which a line was logged


def register(backend: str, abort: Callable[[], None]) -> None:
    """Have ``abort`` called to abort the groups of ``backend``; it takes the place of ours.

    Args:
        backend: name as in ``init_process_group``, such as ``"gloo"``, or of your own backend.
        abort: ends all waits in groups of that backend in this process, and returns; it runs in a
            separate thread, for 30 seconds at most.
    """
    _aborts[backend.lower()] = abort


def abort(backends: Iterable[str], deadline_s: float = DEADLINE_S) -> None:
    """Abort the groups of these backends; a failure is logged, and the others are aborted.

    Args:
        backends: names, lower case.
        deadline_s: how long to wait for each.
    """
    wanted = set(backends)
    for name in sorted(wanted - _aborts.keys() - _named):
        _named.add(name)
        _log.warning(
            "Collectives of backend %r cannot be aborted: a rank that waits in one is ended by the "
            "hard timeout. Register an abort for it in "
            "undaunted.inprocess.communication.registry",
            name,
        )
    names: dict[Callable[[], None], list[str]] = {}
    for name, function in _aborts.items():
        if name in wanted:
            names.setdefault(function, []).append(name)
    for function, of in names.items():
        run(f"Abort of backend {', '.join(of)}", function, deadline_s)


def run(what: str, function: Callable[[], None], deadline_s: float = DEADLINE_S) -> None:
    """Run ``function`` in another thread; log if it fails or takes too long."""

    def logged() -> bool:
        try:
            function()
        except Exception:  # noqa: BLE001 - nothing in an abort is fatal
            _log.exception("%s has failed", what)
        return True

    if not within(deadline_s, logged, otherwise=False):
        _log.error(
            "%s has not ended within %g s; what still waits is ended by the hard timeout",
            what,
            deadline_s,
        )
