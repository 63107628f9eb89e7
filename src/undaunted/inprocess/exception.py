"""Errors of in-process restart, and `RestartAbort`, which users raise to end the job.

`RankDiscarded` is in `rank_assignment`, `FaultCounterExceeded` in `health_check`.
"""

from __future__ import annotations

import builtins


class RestartError(Exception):
    """Base class of the errors of in-process restart."""


class RestartAbort(BaseException):
    """Ends the call in the rank that raises it: the function is not run again there.

    Raised in every rank, it ends the job. It is no `Exception`, so that code which catches errors
    lets it pass.
    """


class RankShouldRestart(BaseException):
    """Raised in the function of every rank when an iteration is over.

    Users may raise it themselves to have the function run again everywhere. It is no `Exception`,
    so that code which catches errors lets it pass; code that catches everything must raise it on.
    """


class HealthCheckError(RestartError):
    """A health check has failed; its error is the ``__cause__``."""


class InternalError(RestartError):
    """This rank cannot be restarted any more: its guard is gone, or the others go on without it."""


class TimeoutError(RestartError, builtins.TimeoutError):  # noqa: A001 - the name users know
    """The user's code has taken longer than its limit."""


class BarrierError(RestartError):
    """A wait for all ranks has failed."""


class BarrierTimeout(BarrierError):  # noqa: N818 - the name users know
    """Not all ranks came in time."""
