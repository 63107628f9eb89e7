"""Events about functions that `undaunted.inprocess` restarts; the rules of `events` hold here."""

from __future__ import annotations

from undaunted.journal.event import Event, Seconds


class InProcessPhase(Event, tag="inprocess_phase", frozen=True, kw_only=True):
    """A part of getting a function that is restarted inside its processes to run again.

    Attributes:
        call: how many calls of such functions there were before.
        epoch: which restart of the call, from 1; the one that is under way.
        phase: ``detect`` (at ``t`` the epoch before is over, for ``reasons``); ``abort``, ``stop``,
            ``finalize``, ``health`` and others that ranks name (the longest time of a rank);
            ``agree`` (what else it took until all were known to be ready); ``re-enter`` (at ``t``
            the ``members`` are told to run the function).
        took_s: seconds; of ``detect`` how long the function had run, of ``re-enter`` since
            ``detect``.
        rank: whose time it is; the last one that was ready, of ``agree``; -1 = nobody's.
        members: how many ranks take part from now on.
        lost: which ranks of the job do not any more.
        reasons: one line per reason.
    """

    call: int
    epoch: int
    phase: str
    took_s: Seconds = 0.0
    rank: int = -1
    members: int = 0
    lost: list[int] = []
    reasons: list[str] = []


class InProcessCall(Event, tag="inprocess_call", frozen=True, kw_only=True):
    """A call of a function that is restarted inside its processes.

    ``call``: how many such calls there were before. ``what``: ``begun``, ``finished`` in all of the
    ``members``, ``ended`` (it cannot go on, for ``text``), ``resumed`` (somebody else decides about
    it). ``epoch``: the one that is on.
    """

    call: int
    epoch: int
    what: str
    members: int = 0
    text: str = ""
