"""The links of guards to the controller: which ranks each one reaches, and when one is given up.

A link is one connection of a guard, or of the guard of a node; later links have higher numbers. No
clock, socket or timer in here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from undaunted.inprocess.core.messages import Enter, Lost, Resume

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.inprocess.core.messages import FromGuard

# A guard whose connection was closed in order is back within milliseconds if it lives.
GRACE_S = 1.0


class Link(Protocol):
    """A connection of a guard.

    Attributes:
        number: of the connection, in the order in which they were made.
    """

    @property
    def number(self) -> int: ...  # noqa: D102


L = TypeVar("L", bound=Link)


@dataclass(slots=True)
class Links(Generic[L]):
    """The link over which the process of each rank came."""

    _links: dict[int, L] = field(default_factory=dict)  # by job rank

    def hears(self, link: L, message: FromGuard) -> bool:
        """Return whether a message counts that came over ``link``.

        False = it is late, as it came over a connection that the guard has given up and has
        repeated it since; or it is of a process that was refused.
        """
        enter = message.enter if isinstance(message, Resume) else message
        known = self._links.get(enter.job_rank, link)
        if isinstance(enter, Enter):
            return link.number >= known.number
        return known is link or (isinstance(enter, Lost) and link.number > known.number)

    def came(self, link: L, job_rank: int) -> None:
        """The process of a rank has come over ``link``, and was taken."""
        self._links[job_rank] = link

    def groups(self, job_ranks: Iterable[int]) -> dict[L, list[int]]:
        """Return the links to these ranks, each with its ranks; ranks without one are left out."""
        groups: dict[L, list[int]] = {}
        for job_rank in job_ranks:
            if (link := self._links.get(job_rank)) is not None:
                groups.setdefault(link, []).append(job_rank)
        return groups

    def give_up(self, link: L) -> tuple[int, ...]:
        """Forget a link; return the ranks that it reached, ascending."""
        job_ranks = tuple(sorted(rank for rank, its in self._links.items() if its is link))
        for job_rank in job_ranks:
            del self._links[job_rank]
        return job_ranks

    def clear(self) -> None:
        """Forget all links: another round has begun."""
        self._links.clear()


def reconnect_grace_s(limit_s: float, *, closed_by_peer: bool, announced_return: bool) -> float:
    """Return for how many seconds the controller waits for a guard whose connection has ended.

    After that, the others go on without its ranks. By then these must have stopped: no rank may be
    in the epoch before while others are in the next one.

    Args:
        limit_s: see `Limits.unreachable_s`.
        closed_by_peer: the other side's kernel has closed the connection: the guard's process has
            ended, and its rank has noticed. False = the network may have reset it, and may keep
            the guard out from now on, which may not even notice.
        announced_return: the guard has said that it comes back.
    """
    return GRACE_S if closed_by_peer and not announced_return else limit_s
