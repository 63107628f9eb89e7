"""The verdict of the launcher about a fault, and whether it is right. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from undaunted.attribution.peers import failed_rank
from undaunted.base.text import one_line
from undaunted.chaos.checker.values import Blame, Defect
from undaunted.chaos.kinds import KINDS
from undaunted.journal.events import InProcessPhase, Verdict
from undaunted.journal.query import every, first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.chaos.checker.cuts import Cut
    from undaunted.chaos.history import History
    from undaunted.chaos.kinds import KindOf
    from undaunted.journal.events import AnyEvent

_REASON = re.compile(r"rank ([0-9]+): ")


def blame_of(cut: Cut, cuts: Sequence[Cut], history: History) -> tuple[Blame, list[Defect]]:
    """Return the verdict of the launcher about a fault that has happened, and findings about it.

    Args:
        cut: the fault.
        cuts: all faults of the run that have happened, in order.
        history: of the run.
    """
    kind = KINDS[cut.fault.kind]
    events = history.events_of(cut.start)
    reasons = _reasons(events, cut, cuts)
    if reasons:
        return _by_reasons(reasons, cut, kind)
    verdict = first(events, Verdict)
    if verdict is not None and _owner(verdict, cut, cuts) is cut:
        return _by_verdict(verdict, cut, kind)
    if kind.blame == "none" or not kind.certain:
        return Blame(), []
    owner = None if verdict is None else _owner(verdict, cut, cuts)
    if owner is not None and (kind.blame == "hang" or cuts.index(owner) < cuts.index(cut)):
        return Blame(), [_overtaken(owner)]
    blame = Blame(right=False)
    return blame, [_swallowed(cut, kind, blame)]


def _owner(verdict: Verdict, cut: Cut, cuts: Sequence[Cut]) -> Cut:
    """Return the fault of the round that the verdict is about: the last one that fits, or last."""
    here = [one for one in cuts if one.start[:2] == cut.start[:2]]
    fitting = [one for one in here if _fits(verdict, one)]
    return (fitting or here)[-1]


def _fits(verdict: Verdict, cut: Cut) -> bool:
    kind = KINDS[cut.fault.kind]
    # A save of undaunted's Checkpointer fails with the rank that could not write.
    anyone = kind.anyone and (kind.outside or failed_rank(verdict.exception) is None)
    return verdict.kind == kind.blame and (anyone or verdict.rank == cut.fault.rank)


def _by_verdict(verdict: Verdict, cut: Cut, kind: KindOf) -> tuple[Blame, list[Defect]]:
    blame = Blame(verdict.kind, verdict.rank, verdict.line, right=_fits(verdict, cut))
    if not blame.right:
        # A rank that goes on after an exception may leave the others waiting, which is a hang.
        caught = bool(kind.exception) and blame.kind == "hang"
        return blame, [_swallowed(cut, kind, blame) if caught else _wrong(blame, cut, kind)]
    if _names_cause(verdict, kind):
        return blame, []
    return blame, [
        Defect(
            "cause-not-named",
            "yellow",
            f"Rank {verdict.rank} was blamed, as it should be, but not for {_cause(kind)}: "
            f"{one_line(verdict.line)}",
            "Let exceptions reach the end of the program; one that is raised instead of another "
            "should name it:\n    raise MyError(...) from error",
        )
    ]


def _names_cause(verdict: Verdict, kind: KindOf) -> bool:
    if kind.signal:
        return verdict.signal == kind.signal
    if kind.exception:
        return kind.exception in verdict.exception
    return kind.exit_code is None or verdict.exit_code == kind.exit_code


def _cause(kind: KindOf) -> str:
    code = "" if kind.exit_code is None else f"exit code {kind.exit_code}"
    return kind.signal or kind.exception or code


def _wrong(blame: Blame, cut: Cut, kind: KindOf) -> Defect:
    if kind.blame == "none":
        return Defect(
            "failed-without-need",
            "red",
            f"Nothing should have failed, but rank {blame.rank} was found to "
            f"{blame.kind or 'fail'}: {one_line(blame.line)}",
            "If it was taken for a hang, the limits are too close: give more with "
            "--ft-rank-heartbeat-timeout, or let them be learned."
            if blame.kind == "hang"
            else "",
        )
    wanted = "hang" if kind.blame == "hang" else "crash"
    return Defect(
        "blamed-wrongly",
        "red",
        f"It was the {wanted} of rank {cut.fault.rank}, but the launcher blamed the "
        f"{blame.kind or 'failure'} of rank {blame.rank}: {one_line(blame.line)}",
        "A timeout of the script's own that is shorter than the limits for hangs makes another "
        "rank fail first:\n"
        "    dist.init_process_group(timeout=timedelta(minutes=10))"
        if wanted == "hang" and blame.kind == "crash"
        else "",
    )


def _reasons(events: Sequence[AnyEvent], cut: Cut, cuts: Sequence[Cut]) -> list[str]:
    """Return why a function was run again inside its processes after a fault, before the next.

    Those that are known when it runs again: what is known first is often a consequence.
    """
    later = min((one.at_ns for one in cuts if one.at_ns > cut.at_ns), default=None)
    for phase in every(events, InProcessPhase):
        in_time = phase.t >= cut.at_ns and (later is None or phase.t < later)
        if phase.phase == "re-enter" and in_time:
            return phase.reasons
    return []


def _by_reasons(reasons: list[str], cut: Cut, kind: KindOf) -> tuple[Blame, list[Defect]]:
    found = _REASON.match(reasons[0])
    rank = int(found[1]) if found else -1
    right = kind.blame != "none" and (kind.anyone or rank == cut.fault.rank)
    blame = Blame("crash" if kind.blame == "none" else kind.blame, rank, reasons[0], right)
    return blame, [] if right else [_wrong(blame, cut, kind)]


def _overtaken(owner: Cut) -> Defect:
    return Defect(
        "overtaken",
        "yellow",
        f"Nobody could notice the fault: {owner.fault.id} ended the round at almost the same time.",
        "Plan them further apart.",
    )


def _swallowed(cut: Cut, kind: KindOf, blame: Blame) -> Defect:
    rank = cut.fault.rank
    if not kind.exception and kind.exit_code is None:
        return Defect(
            "not-noticed",
            "red",
            f"Rank {rank} {kind.text}, and the launcher did not notice before the round was over.",
        )
    instead = "nobody learns of such failures."
    if blame.line:
        instead = f"the ranks wait for each other instead: {one_line(blame.line)}"
    return Defect(
        "exception-swallowed",
        "red",
        f"{kind.exception or 'SystemExit'} was raised in rank {rank} and never reached the "
        "launcher. The script catches it and goes on as if nothing had happened, so that "
        f"{instead}",
        "Catch what you expect, and let everything else end the program:\n"
        "    except ValueError as error:   # not `except Exception:`, not `except:`\n"
        "        ...",
    )
