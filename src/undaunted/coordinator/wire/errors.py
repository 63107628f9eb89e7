"""What went wrong with a server or a connection."""

from __future__ import annotations


class WireError(Exception):
    """There is no connection, or no server; the message says where, why and what to do.

    Attributes:
        refused: one of the two sides does not want the other: version, job or token do not fit.
            Trying again is of use only if another process may answer then.
        number: of the system's error, 0 = it was none.
    """

    def __init__(self, message: str, *, refused: bool = False, number: int = 0) -> None:
        """``message``: one line for people."""
        super().__init__(message)
        self.refused = refused
        self.number = number
