"""Errors of in-process restart that users may meet, and the one that they raise to end the job.

`BarrierError` and those below it are in `store`, `RankDiscarded` is in `rank_assignment`,
`FaultCounterExceeded` in `health_check`.
"""

from __future__ import annotations

import builtins


class RestartError(Exception):
    """Base of all errors that in-process restart raises itself."""


class RestartAbort(BaseException):
    """Ends the call in the rank that raises it: the function is not run again there.

    Raised in every rank, it ends the job. It is no error that code in between should handle.
    """


class RankShouldRestart(BaseException):
    """Raised in the function of every rank when an iteration is over.

    Users may raise it themselves to have the function run again everywhere. It is no `Exception`,
    so that code which catches errors lets it pass; code that catches everything must raise it on.
    """


class HealthCheckError(RestartError):
    """A health check has failed; its own error is the cause."""


class InternalError(RestartError):
    """Monitoring of this rank is gone, so that it cannot be restarted any more."""


class TimeoutError(RestartError, builtins.TimeoutError):  # noqa: A001 - the name users know
    """Something of the user's has taken longer than it was given."""
