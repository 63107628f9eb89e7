"""The exception that takes a rank out of the user's function."""

from __future__ import annotations


class RankShouldRestart(BaseException):
    """Raised in the function of every rank when an iteration is over.

    Users may raise it themselves to have the function run again everywhere. It is no `Exception`,
    so that code which catches errors lets it pass; code that catches everything must raise it on.
    """
