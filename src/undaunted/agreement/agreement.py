"""All ranks agree within a deadline, over a torch store.

The first verdict that is written decides for all ranks, so that no rank believes what another does
not: rank 0's, that of a rank that failed, or that of one that waited in vain. See `Turn`.

Each rank counts its rounds. When only some ranks make a call, their round fails, and the others
find that failure under the number of their next call. They see by the name that it is about
something they took no part in, pass it over, and so meet the others again in their next call.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from undaunted.agreement.failures import AgreedError, Failure
from undaunted.agreement.store import AbortedError, Bounded, TimedOutError
from undaunted.agreement.turn import Member, Turn, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from undaunted.agreement.store import StoreLink

__all__ = ["Agreeing", "Agreement", "Alone", "Failure"]

KINDS = (AgreedError,)
_READ_S = 2.0  # for others to read why a round failed, before rank 0 may end by it


class Agreement:
    """Rounds of all ranks, one after the other, in the same order on each.

    Attributes:
        rank: of this process in the group, from 0.
        world_size: how many take part.
        session: name of this run, the same on all ranks and new for each run.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        session: str,
        lane: str = "main",
        link: StoreLink | None = None,
        job_ranks: Sequence[int] = (),
        kinds: Sequence[type[AgreedError]] = KINDS,
    ) -> None:
        """Take part.

        Args:
            store: a torch store that nobody else waits in, as its waits exclude each other.
            rank: see the class.
            world_size: see the class.
            session: see the class.
            lane: tells several agreements of one session apart.
            link: of the store; None means that its server is in this process and never stands
                still.
            job_ranks: those of the group, in its order; messages and errors name them. Empty means
                that they are the same.
            kinds: of errors that are raised on all ranks as on the one that had it; the first of
                them is raised for all others, and when ranks do not answer.
        """
        self.rank = rank
        self.world_size = world_size
        self.session = session
        self._member = Member(store, rank, world_size, job_ranks)
        self._kinds = kinds
        self._link = link
        self._prefix = f"undaunted/agreement/{session}/{lane}"
        self._next = 0
        self._finished: list[str] = []  # rounds whose keys are still there; rank 0 only
        self._broken = False
        self._bounded = Bounded(self._interrupt)

    def round(
        self,
        name: str,
        contribution: bytes | Failure,
        decide: Callable[[Sequence[bytes]], bytes],
        timeout_s: float,
        *,
        join_later: bool = False,
    ) -> bytes:
        """Return what rank 0 decides for all from the contributions of all ranks.

        Args:
            name: what this is about, the same on all ranks; for messages.
            contribution: of this rank, or why it has none: that ends the round on all ranks at
                once.
            decide: called on rank 0 only, with the contributions in the order of ranks. What it
                raises is raised on all ranks.
            timeout_s: how long rank 0 waits for the contributions, and, when all are there, the
                others for the decision. Begins anew when the others turn out to have been at
                another call before; that happens within this time.
            join_later: what has failed before this rank came is passed over also if it has the
                same name: for what others may have tried without this rank, and try again. Else
                this rank hears that it came too late, and waits for nobody.

        Raises:
            AgreedError: with the ranks that failed or did not answer; of the kind that a rank
                contributed or ``decide`` raised, if that is one of those given.
        """
        return self._together(name, contribution, decide, timeout_s, join_later=join_later)

    def scatter(
        self,
        name: str,
        contribution: bytes | Failure,
        decide: Callable[[Sequence[bytes]], list[bytes]],
        timeout_s: float,
    ) -> bytes:
        """Return what rank 0 decides for this rank; otherwise the same as `round`.

        No rank is sent what is for another.

        Args:
            name: see `round`.
            contribution: see `round`.
            decide: as in `round`, and returns as many results as there are ranks, in their order.
            timeout_s: see `round`.

        Raises:
            AgreedError: see `round`.
        """
        return self._together(name, contribution, decide, timeout_s)

    def _together(
        self,
        name: str,
        contribution: bytes | Failure,
        decide: Callable[[Sequence[bytes]], bytes | list[bytes]],
        timeout_s: float,
        *,
        join_later: bool = False,
    ) -> bytes:
        began = time.monotonic()
        while True:
            prefix = f"{self._prefix}/{self._next}"
            self._next += 1
            turn = Turn(self._member, prefix, name, timeout_s)
            with self._naming_losses(turn):
                self._connect(timeout_s)
                if join_later and self._bounded.call(turn.is_over, turn.limit_s):
                    self._note_over(turn)
                    continue
                if self.rank == 0:
                    verdict, cause = self._lead(turn, contribution, decide)
                else:
                    verdict, cause = self._follow(turn, contribution), None
            if verdict.is_of(name) or time.monotonic() - began >= timeout_s:
                if verdict.failure is not None:
                    self._await_readers(turn)
                    error = verdict.failure.error(self._kinds, verdict.ranks)
                    error.undecided = verdict.undecided
                    raise error from cause
                return verdict.content

    def speaks_of(self, error: AgreedError) -> bool:
        """Return whether this rank tells people of an error that all ranks raise: one does for all.

        It is the first whose failure it is not, as others may be gone; rank 0 if it is that of all.
        """
        job_ranks = self._member.job_ranks
        well = (rank for rank in range(self.world_size) if job_ranks[rank] not in error.ranks)
        return self.rank == next(well, 0)

    def abort(self) -> None:
        """Have the round in progress, and all later ones, raise at once; others hear nothing."""
        self._bounded.abort()

    def leave(self, timeout_s: float) -> None:
        """After the last round: rank 0 waits until the others have read its verdict.

        Raises:
            AgreedError: they did not say so in time, or the connection is lost.
        """
        if self._broken or self._member.store is None:
            return
        last = Turn(self._member, f"{self._prefix}/leave", "leave", timeout_s)
        try:
            self._bounded.call(last.leave, last.limit_s)
        except (AbortedError, TimedOutError, RuntimeError) as error:
            server = self._member.job_ranks[0]
            message = f"the connection of the ranks was lost: {error}"
            raise self._error(message, (server,)) from error

    def close(self) -> None:
        """Take part no more; lets go of the store."""
        self._bounded.abort()
        self._member.store = None

    def _lead(
        self,
        turn: Turn,
        contribution: bytes | Failure,
        decide: Callable[[Sequence[bytes]], bytes | list[bytes]],
    ) -> tuple[Verdict, Exception | None]:
        gathered = self._bounded.call(lambda: turn.gather(contribution), turn.limit_s)
        over: list[str] = []
        parts: list[bytes] = []
        error: Exception | None = None
        if isinstance(gathered, Verdict):
            verdict = gathered
        else:
            try:
                verdict, parts = self._decided(decide(gathered))
            except Exception as raised:  # noqa: BLE001 - raised on all ranks
                error = raised
                verdict = turn.failed(Failure.of(raised))
            # All ranks are in this round: nobody reads the keys of earlier ones any more.
            over, self._finished = self._finished, []
        final = self._bounded.call(lambda: turn.close(verdict, over, parts), turn.limit_s)
        self._note_over(turn)
        return final, error

    def _decided(self, decided: bytes | list[bytes]) -> tuple[Verdict, list[bytes]]:
        if isinstance(decided, bytes):
            return Verdict(decided), []
        if len(decided) != self.world_size:
            raise ValueError(f"{len(decided)} results were decided for {self.world_size} ranks")
        return Verdict(scattered=True), decided

    def _await_readers(self, turn: Turn) -> None:
        """Rank 0 waits until the others have read why a round failed.

        It serves the store, and may end by that error.
        """
        end = Turn(self._member, f"{turn.prefix}/read", turn.name, min(_READ_S, turn.timeout_s))
        self._note_over(end)
        with contextlib.suppress(AbortedError, TimedOutError, RuntimeError):
            self._bounded.call(end.leave, end.limit_s)

    def _note_over(self, turn: Turn) -> None:
        if self.rank == 0:
            self._finished.append(turn.prefix)

    def _follow(self, turn: Turn, contribution: bytes | Failure) -> Verdict:
        verdict = self._bounded.call(lambda: turn.take_part(contribution), turn.limit_s)
        if verdict is None:
            verdict = self._bounded.call(turn.await_decision, turn.limit_s)
        return verdict

    @contextlib.contextmanager
    def _naming_losses(self, turn: Turn) -> Iterator[None]:
        """Say of a connection that is lost who is at its other end."""
        server = self._member.job_ranks[0]
        try:
            yield
        except TimedOutError as error:
            self._broken = True
            raise self._error(
                f"{turn.name}: rank {server}, whose process serves the agreement, did not answer "
                f"within {turn.timeout_s:g} s: it is stopped, or its node cannot be reached",
                (server,),
            ) from error
        except AbortedError as error:
            raise self._error(str(error)) from None
        except (RuntimeError, OSError) as error:  # torch's errors of stores are RuntimeErrors
            self._broken = True
            raise self._error(
                f"{turn.name}: the process of rank {server}, which serves the agreement, is gone "
                f"or cannot be reached: {error}",
                (server,),
            ) from error

    def _connect(self, timeout_s: float) -> None:
        """Replace a connection that was given up."""
        if self._broken:
            link = self._link
            if link is None:
                server = self._member.job_ranks[:1]
                raise self._error("the connection of the ranks was lost", server)
            bounded = self._bounded
            self._member.store = bounded.call(
                lambda: link.reopen(timeout_s, lambda: bounded.aborted), timeout_s
            )
            self._broken = False

    def _error(self, message: str, ranks: Sequence[int] = ()) -> AgreedError:
        """Return the error of a round that did not come about."""
        return Failure(message).error(self._kinds, ranks)

    def _interrupt(self) -> None:
        self._broken = True
        if self._link is not None:
            self._link.interrupt()


class Alone:
    """Agreement of a rank with itself: without ``torch.distributed``, or in a world of one.

    Has the interface of `Agreement`; nothing is waited for.

    Attributes:
        rank: 0.
        world_size: 1.
        session: name of this run, new for each.
    """

    rank = 0
    world_size = 1

    def __init__(self, session: str, kinds: Sequence[type[AgreedError]] = KINDS) -> None:
        """Args: as for `Agreement`."""
        self.session = session
        self._kinds = kinds

    def round(
        self,
        name: str,  # noqa: ARG002 - the interface
        contribution: bytes | Failure,
        decide: Callable[[Sequence[bytes]], bytes],
        timeout_s: float,  # noqa: ARG002 - the interface
        *,
        join_later: bool = False,  # noqa: ARG002 - the interface
    ) -> bytes:
        """Return what is decided; see `Agreement.round`."""
        if isinstance(contribution, Failure):
            error = contribution.error(self._kinds, (0,))
            error.undecided = True
            raise error
        try:
            return decide([contribution])
        except AgreedError:
            raise
        except Exception as error:
            raise Failure.of(error).error(self._kinds, (0,)) from error

    def scatter(
        self,
        name: str,
        contribution: bytes | Failure,
        decide: Callable[[Sequence[bytes]], list[bytes]],
        timeout_s: float,
    ) -> bytes:
        """Return what is decided; see `Agreement.scatter`."""
        return self.round(name, contribution, lambda mine: decide(mine)[0], timeout_s)

    def speaks_of(self, error: AgreedError) -> bool:  # noqa: ARG002 - the interface
        """See `Agreement.speaks_of`."""
        return True

    def abort(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """There is nothing to give back."""


Agreeing = Agreement | Alone
