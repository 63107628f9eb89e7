"""What is remembered of a job: part of messages, and written down. See docs/design/coordination.md.

Fields are only added, with defaults: older builds ignore unknown ones.
"""

from __future__ import annotations

import msgspec


class Seat(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A member of a table: who it is, where it listens, which ranks it has."""

    node: str
    incarnation: str
    address: str  # host:port for other agents; "" = it does not listen
    group_rank: int
    first_rank: int
    slots: int


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What must survive a leader; `newer` says which of two holds.

    Attributes:
        run_id: the job.
        epoch: of the leader who wrote it, when a quorum last agreed to that one; rises with every
            leader.
        version: rises with every change.
        leader: node that leads, "" = a host of its own.
        casting_vote: node that led when ``table`` was started; it decides when exactly half of the
            table is there. "" = members have no votes, nobody can take over.
        before, before_vote: table and casting vote of the round before, as long as somebody of
            ``table`` may not know that it was started; such a node may still elect a leader by the
            one before, so that a quorum of both is needed.
        birth: epoch of the leader who has started the first round; a job that begins anew, since
            nobody of its earlier start is left, has a later one.
        round: of ``table``; -1 = none has begun.
        running: the round has been started and not stopped.
        restarts_used: of the job's budget.
        table: members of the last round that was started.
        pending_round, pending: table that is being prepared, if any.
        excluded: node to reason.
        reached: highest iteration reached, None = unknown.
        stalled: one text per round in a row without progress.
    """

    run_id: str
    epoch: int = 0
    version: int = 0
    leader: str = ""
    casting_vote: str = ""
    before: tuple[Seat, ...] = ()
    before_vote: str = ""
    birth: int = 0
    round: int = -1
    running: bool = False
    restarts_used: int = 0
    table: tuple[Seat, ...] = ()
    pending_round: int = -1
    pending: tuple[Seat, ...] = ()
    excluded: dict[str, str] = {}
    reached: int | None = None
    stalled: tuple[str, ...] = ()


NO_LEDGER = Ledger(run_id="")


def started(ledger: Ledger, version: int, casting_vote: str) -> Ledger:
    """The ledger once the round that was being prepared has been started."""
    before = (ledger.before, ledger.before_vote)
    table, vote = before if ledger.before else (ledger.table, ledger.casting_vote)
    return msgspec.structs.replace(
        ledger,
        version=version,
        birth=ledger.birth if ledger.round >= 0 else ledger.epoch,
        round=ledger.pending_round,
        running=True,
        table=ledger.pending,
        casting_vote=casting_vote,
        before=table,
        before_vote=vote,
        pending=(),
    )


def settled(ledger: Ledger) -> Ledger:
    """The ledger once every member of the table knows that the round was started."""
    return msgspec.structs.replace(ledger, before=(), before_vote="")


def settled_by(ledger: Ledger, other: Ledger) -> Ledger:
    """``ledger``, settled if that is so according to ``other``, be it older or newer."""
    if not ledger.before or other.before:
        return ledger
    same = (ledger.birth, ledger.round) == (other.birth, other.round)
    return settled(ledger) if same and ledger.table == other.table else ledger


def stopped(ledger: Ledger, version: int, restarts_used: int, excluded: dict[str, str]) -> Ledger:
    """The ledger once the round has been told to stop."""
    return msgspec.structs.replace(
        ledger, version=version, running=False, restarts_used=restarts_used, excluded=excluded
    )


def newer(one: Ledger, other: Ledger) -> bool:
    """Whether ``one`` replaces ``other``.

    A launcher that knows of no job may have a late epoch: a job that has begun goes first.
    """
    if (one.round < 0) != (other.round < 0):
        return other.round < 0
    return (one.epoch, one.version) > (other.epoch, other.version)


def further(one: Ledger, other: Ledger) -> bool:
    """Whether ``one`` knows of a round, begun or prepared, that ``other`` is too old to know of.

    A round that only an older ledger knows has been replaced: no quorum has begun it.
    """
    if one.round < 0 or not newer(one, other):
        return False
    return (one.birth, max(one.round, one.pending_round)) > (other.birth, other.round)
