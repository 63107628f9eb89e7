"""The verdict about each fault of a run: puts together what the other modules find. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base.text import name_ranks, one_line
from undaunted.chaos.checker import causes, ending
from undaunted.chaos.checker.blame import blame_of
from undaunted.chaos.checker.cuts import cuts
from undaunted.chaos.checker.identity import Identity, after_faults, base, before_faults
from undaunted.chaos.checker.lives import lives, reference_lines
from undaunted.chaos.checker.recovery import recovery_of, stopped
from undaunted.chaos.checker.trouble import trouble
from undaunted.chaos.checker.values import Colour, Defect, Judgement
from undaunted.chaos.kinds import INSIDE, KINDS, REPLICA
from undaunted.coordinator.policy.messages import Outcome as Ending
from undaunted.journal.events import RankEvent
from undaunted.journal.query import every
from undaunted.training.rerun.table import OPINIONS, RerunDiagnostic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from undaunted.chaos.checker.cuts import Cut
    from undaunted.chaos.checker.lives import Life, ReferenceRun
    from undaunted.chaos.checker.recovery import Recovery
    from undaunted.chaos.history import History
    from undaunted.chaos.plan import Planned

# Beginning anew after a fault that late in the run is worth a word.
_MUCH, _TOO_MUCH = 1 / 3, 1 / 2
# Of a model that is not loaded: where the run is placed by its parameters, it seems to start anew.
_CONSEQUENCES = ("started-anew", "ended-early")
_STATE = ("parameters", "buffers", "optimizer")
# What a second opinion has to say of a wrong result.
_WRONG = {
    "wrong-result": RerunDiagnostic.TRANSIENT_ERROR,
    "wrong-result-always": RerunDiagnostic.PERSISTENT_ERROR,
}
_OPINION = "odd_result"
_TOLD = (_OPINION, "replicas_differ", "replay_mismatch")  # events of a session's checks
_SAVE = "Save checkpoints more often, and load the newest at the start."
_OR_REMOVED = ", or the one there was is removed before the next is complete"
_KEEP = " Remove or replace the old checkpoint only when the new one is complete."
_SEVERITIES = ("red", "yellow", "note")


def judge(reference: History, history: History, planned: Sequence[Planned]) -> list[Judgement]:
    """Say what became of each fault of one run.

    Args:
        reference: of the undisturbed run.
        history: of the run.
        planned: the faults of this run, by ascending iteration.

    Returns:
        One verdict per fault, in the order of ``planned``.
    """
    case = _Case.of(reference, history, planned)
    judged = {cut.fault.id: case.judge(place) for place, cut in enumerate(case.cuts)}
    return [judged.get(fault.id) or case.not_happened(fault) for fault in planned]


@dataclass(frozen=True)
class _Case:
    """A run beside the undisturbed one."""

    reference: History
    history: History
    lines: Mapping[int, ReferenceRun]
    by_rank: Mapping[int, Sequence[Life]]
    cuts: Sequence[Cut]
    end: Defect | None
    before: Identity
    after: Sequence[Identity]

    @classmethod
    def of(cls, reference: History, history: History, planned: Sequence[Planned]) -> _Case:
        lines = reference_lines(reference)
        by_rank = lives(history, lines)
        found = cuts(history, planned, by_rank)
        return cls(
            reference=reference,
            history=history,
            lines=lines,
            by_rank=by_rank,
            cuts=found,
            end=ending.ending(reference, history, lines, by_rank),
            before=before_faults(by_rank, lines, found),
            after=after_faults(by_rank, lines, found),
        )

    def judge(self, place: int) -> Judgement:
        """The verdict about a fault that has happened."""
        cut = self.cuts[place]
        following = self.cuts[place + 1] if place + 1 < len(self.cuts) else None
        recovery = recovery_of(cut, following, self.history, self.by_rank)
        recovered, unrecovered = self._recovered(cut, following)
        blame, findings = blame_of(cut, self.cuts, self.history)
        findings += trouble(
            cut, following, self.cuts, self.history, recovered=recovered is not False
        )
        findings += unrecovered
        findings += self._steps(cut, recovery)
        findings += self._nothing_happened(cut, following, blame.kind)
        findings += self._stop(cut, following, recovery, blame.kind)
        findings += self._nan(cut)
        findings += self._opinions(cut, following)
        findings += self._nemesis(cut)
        same = self._identity(cut, self.after[place], recovery, recovered=recovered)
        if following is None and recovered:
            same += self._incomplete(self.after[place], recovery)
        if any(finding.key == "checkpoint-not-loaded" for finding in same):
            findings = [one for one in findings if one.key not in _CONSEQUENCES]
        if any(finding.key == "exception-swallowed" for finding in findings):
            same = []  # that the result differs follows from it
        findings = sorted(findings + same, key=lambda finding: _SEVERITIES.index(finding.severity))
        identity = self.after[place]
        judged = identity.state == "identical" and self.before.difference is None
        return Judgement(
            fault=cut.fault,
            colour=_colour(findings),
            launch=cut.start.launch,
            round=cut.start.round,
            iteration=cut.iteration,
            recovered=recovered,
            blame=blame,
            back_s=recovery.back_s,
            phases=recovery.phases,
            resumed_at=recovery.resumed_at,
            steps_lost=recovery.steps_lost,
            identical_from=identity.first if judged else None,
            difference=identity.difference,
            findings=tuple(findings),
        )

    def not_happened(self, fault: Planned) -> Judgement:
        """The verdict about a fault that has not happened."""
        outcome = self.history.outcome
        why = outcome.skipped.get(fault.id, "")
        if not why and outcome.interrupted:
            why = "the user ended the run before"
        if not why and self.end is not None and self.cuts:
            why = f"the run did not get over {self.cuts[-1].fault.id} and ended before"
        if why:
            return Judgement(fault=fault, colour="skipped", skipped=why)
        finding = self.end or self._not_come(fault)
        return Judgement(fault=fault, colour=_colour([finding]), findings=(finding,))

    def _not_come(self, fault: Planned) -> Defect:
        """Say why nothing happened in a run that ended well."""
        remedy = ""
        if self.lines and fault.rank not in self.lines:
            text = (
                f"rank {fault.rank} took no step in the undisturbed run either. It is a reserve, "
                "or does other work."
            )
            remedy = "Plan it on another rank."
        elif any(record.counted for records in self.history.records.values() for record in records):
            text = (
                f"no process of rank {fault.rank} counted {fault.iteration} steps. The script does "
                "not tell its steps, so that they are counted from 0 in every process."
            )
            remedy = "Call undaunted.step(step) at the beginning of each step."
        else:
            text = (
                f"rank {fault.rank} did not come to step {fault.iteration} after the faults before "
                "it, or the launcher's journal has lost that it did."
            )
        return Defect("did-not-happen", "yellow", f"The fault did not happen: {text}", remedy)

    def _recovered(self, cut: Cut, following: Cut | None) -> tuple[bool | None, list[Defect]]:
        """Whether the run got over a fault: it ended well, or came to another fault."""
        if self.end is None or following is not None:
            return True, []
        if self.history.outcome.interrupted:
            return None, [Defect("interrupted", "yellow", "The user ended the run.")]
        if cut.fault.kind in _WRONG and (reason := self._found_by_checks()):
            text = f"The checks of the script found it, and the job ended: {one_line(reason)}"
            return False, [Defect("wrong-result-found", "note", text)]
        return False, [self.end]

    def _steps(self, cut: Cut, recovery: Recovery) -> list[Defect]:
        at, lost = recovery.resumed_at, recovery.steps_lost
        if at is None or lost is None:
            return []
        if len(set(recovery.resumed.values())) > 1:
            told = ", ".join(f"rank {rank} with {i}" for rank, i in recovery.resumed.items())
            return [
                Defect(
                    "ranks-resume-apart",
                    "red",
                    f"The ranks went on with different steps: {told}.",
                    "Let one rank choose the checkpoint for all:\n"
                    "    dist.broadcast_object_list(newest, src=0)",
                )
            ]
        firsts = [line.first for line in self.lines.values() if line.first is not None]
        lasts = [line.last for line in self.lines.values() if line.last is not None]
        if not firsts or at != min(firsts) or cut.iteration <= at:
            return []
        part = lost / (max(lasts) - min(firsts) + 1)
        much, torn = part > _MUCH, KINDS[cut.fault.kind].save == "ended"
        return [
            Defect(
                "started-anew",
                "red" if part > _TOO_MUCH else "yellow" if much else "note",
                f"The program started from the beginning and did {lost} steps again: there was no "
                f"checkpoint yet, or none is loaded{_OR_REMOVED if torn else ''}.",
                _SAVE + (_KEEP if torn else "") if much else "",
            )
        ]

    def _nothing_happened(self, cut: Cut, following: Cut | None, blamed: str) -> list[Defect]:
        until = "to the end" if following is None else f"to {following.fault.id}"
        if cut.fault.how in INSIDE and not blamed and not cut.interrupted:
            return [_nothing_planted(cut, until)]
        if cut.fault.kind != "torn-write" or blamed:
            return []
        return [
            Defect(
                "nothing-torn",
                "yellow",
                f"Rank {cut.fault.rank} wrote no file of more than 64 KiB from there {until}, so "
                "that nothing was torn.",
                "Plan it on a rank that writes checkpoints, well before its next one. Small "
                "ones are not torn.",
            )
        ]

    def _found_by_checks(self) -> str:
        """Return why the job ended because of a result that may be wrong, "" if it did not."""
        last = self.history.launches[-1].summary
        return last.reason if last.outcome in (Ending.SUSPECT.value, Ending.INVALID.value) else ""

    def _wrong(self, cut: Cut, found: Identity) -> list[Defect]:
        """Findings about what a wrong result has led to."""
        events = self.history.events_of(cut.start)
        told = [e for e in every(events, RankEvent) if e.name in _TOLD and e.at_ns >= cut.at_ns]
        if found.state == "differs" and found.difference is not None:
            noticed = bool(told) or cut.interrupted
            return [
                Defect(
                    "wrong-result-kept",
                    "yellow",
                    f"{'Noticed, but the' if noticed else 'Not noticed: the'} results differ from "
                    f"step {found.difference.iteration} on.",
                    "Compare what ranks should have alike, or check results within their step, and "
                    "go back to a checkpoint from before: see Session.check.",
                )
            ]
        undone = told or cut.interrupted or self.end is not None
        if found.state == "identical" and not undone:
            text = "Nothing differs: no dense gradient was computed from there on."
            return [Defect("nothing-altered", "yellow", text)]
        return []

    def _opinions(self, cut: Cut, following: Cut | None) -> list[Defect]:
        """Findings about what a second opinion has said of a wrong result."""
        wanted = _WRONG.get(cut.fault.kind)
        if wanted is None:
            return []
        end = following.at_ns if following is not None else math.inf
        return [
            _opinion(event, right=event.rank == cut.fault.rank and OPINIONS[wanted] in event.text)
            for launch in self.history.launches
            for event in every(launch.events, RankEvent)
            if event.name == _OPINION and cut.at_ns <= event.at_ns < end
        ]

    def _stop(
        self, cut: Cut, following: Cut | None, recovery: Recovery, blamed: str
    ) -> list[Defect]:
        """Findings about ranks that were to stop together."""
        if not KINDS[cut.fault.kind].stops:
            return []
        if stopped(cut, self.history):
            return _lost_by_stop(recovery)
        if blamed:
            return []
        until = "to the end" if following is None else f"to {following.fault.id}"
        return [
            Defect(
                "nothing-stopped",
                "yellow",
                f"Nothing stopped or failed from there {until}: the ranks have no session that "
                "they ask whether to stop, or it was too late for them.",
                "Ask after each step, and plan the fault well before the end:\n"
                "    with Session(save=save) as session: ...\n"
                "        if session.should_stop(step):\n"
                "            break",
            )
        ]

    def _nemesis(self, cut: Cut) -> list[Defect]:
        """Findings about faults that the nemesis could not make."""
        return [
            Defect("not-made", "yellow", f"The fault could not be made: {one_line(note.text)}")
            for note in self.history.outcome.notes
            if note.fault == cut.fault.id and note.what == "failed"
        ]

    def _nan(self, cut: Cut) -> list[Defect]:
        suspects = [one for one in self.cuts if one.fault.kind == "nan"] or self.cuts
        ranks = ending.nan_kept(self.reference, self.history)
        if not ranks or cut is not suspects[-1]:
            return []
        return [
            Defect(
                "nan-kept",
                "red",
                f"The run ended with NaN or infinity in the parameters or gradients of "
                f"{name_ranks(ranks)}: nobody noticed, and checkpoints hold it too.",
                "Look before each update, and go back to a checkpoint or leave the batch out:\n"
                "    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                "    if not torch.isfinite(norm): ...",
            )
        ]

    def _identity(
        self, cut: Cut, found: Identity, recovery: Recovery, *, recovered: bool | None
    ) -> list[Defect]:
        """Findings about whether the result is the same."""
        if self.before.difference is not None:
            return [_not_deterministic(self.before)]
        if found.state == "differs" and recovery.lost_ranks:
            return [
                Defect(
                    "fewer-ranks",
                    "note",
                    f"The others went on without {name_ranks(recovery.lost_ranks)}, so that the "
                    "result rightly differs.",
                )
            ]
        missing = ending.ranks_missing(self.lines, self.by_rank)
        if cut.fault.kind in _WRONG and found.state in ("differs", "identical"):
            return self._wrong(cut, found)
        if found.state == "differs" and KINDS[cut.fault.kind].alters:
            if ending.nan_kept(self.reference, self.history):
                return []  # another finding says that, and it is worse
            return [
                Defect(
                    "altered",
                    "note",
                    "The result differs from here on, as it may: an update was left out.",
                )
            ]
        if KINDS[cut.fault.kind].poisons and recovered and _differs_in_state(found):
            return [_bad_checkpoint_kept(self.history, cut)]
        if found.state == "differs" and found.fresh and KINDS[cut.fault.kind].save == "damaged":
            return [_damage_not_noticed(self.history, cut)]
        if found.state in ("random", "differs"):
            return causes.explain(found, self.lines)
        if found.state == "inherited":
            text = "The run differed from the undisturbed one already before this fault."
            return [Defect("differed-before", "yellow", text)]
        if recovered and (found.state == "unknown" or missing):
            return [self._unknown(missing)]
        return []

    def _incomplete(self, found: Identity, recovery: Recovery) -> list[Defect]:
        """Findings where the end of the run is equal as far as it was recorded."""
        last = max((line.last for line in self.lines.values() if line.last is not None), default=-1)
        silent = sorted(set(self.lines) - {*found.ranks, *recovery.lost_ranks})
        if found.state not in ("identical", "random") or ending.ranks_missing(
            self.lines, self.by_rank
        ):
            return []
        if silent:
            text = f"After this fault nothing was recorded by {name_ranks(silent)}."
        elif found.last is not None and found.last < last:
            text = f"It is as far as it was recorded: up to step {found.last} of {last}."
        else:
            return []
        return [_not_known(text)]

    def _unknown(self, missing: Sequence[int]) -> Defect:
        if not self.lines:
            text = "The undisturbed run recorded nothing to compare with."
        elif missing:
            text = f"In this run nothing was recorded by {name_ranks(missing)}."
        else:
            text = "Nothing was recorded from this fault to the next, or to the end."
        return _not_known(text)


def _opinion(event: RankEvent, *, right: bool) -> Defect:
    said = f"of rank {event.rank}: {one_line(event.text)}"
    if right:
        return Defect("opinion-right", "note", f"The second opinion is right, {said}")
    return Defect(
        "opinion-wrong",
        "red",
        f"The second opinion is wrong, {said}",
        "Begin both runs of a step with the same batch and without gradients, and check what a "
        "rank has computed alone, before it is reduced:\n"
        "    for _ in session.attempts():\n"
        "        optimizer.zero_grad()",
    )


def _lost_by_stop(recovery: Recovery) -> list[Defect]:
    if not recovery.steps_lost:
        return []
    return [
        Defect(
            "stop-not-saved",
            "yellow",
            f"All ranks stopped in order, but the next start went on with step "
            f"{recovery.resumed_at} and did {recovery.steps_lost} steps again: the state at the "
            "stop was not saved, or is not what is loaded.",
            "Give the session a function that saves, and wait until what it saves is complete:\n"
            "    with Session(save=save) as session: ...\n"
            "    checkpoints.close()",
        )
    ]


def _not_known(text: str) -> Defect:
    return Defect(
        "identity-unknown",
        "yellow",
        f"It is not known whether the result is the same. {text}",
        "Give what makes up the state to undaunted.step(step, digest=model); look into the output "
        "of the run for a rank that could not record.",
    )


def _not_deterministic(before: Identity) -> Defect:
    assert before.difference is not None
    first = before.difference
    return Defect(
        "not-deterministic",
        "yellow",
        f"The script is not deterministic by itself: {', '.join(first.parts)} of rank {first.rank} "
        f"differed at step {first.iteration} already, before any fault. It is unknown whether "
        "the result is the same.",
        "Seed everything, and choose deterministic algorithms:\n"
        "    torch.manual_seed(seed); random.seed(seed); numpy.random.seed(seed)\n"
        "    torch.use_deterministic_algorithms(True)",
    )


def _colour(findings: Iterable[Defect]) -> Colour:
    severities = {finding.severity for finding in findings}
    return "red" if "red" in severities else "yellow" if "yellow" in severities else "green"


def _differs_in_state(found: Identity) -> bool:
    """Whether a start began with a state that the undisturbed run never had there."""
    if found.state != "differs" or not found.fresh or found.difference is None:
        return False
    return any(base(part) in _STATE for part in found.difference.parts)


def _nothing_planted(cut: Cut, until: str) -> Defect:
    did_not = "No rank took"
    if cut.fault.how == REPLICA:
        did_not = f"Rank {cut.fault.rank} did not take"
    return Defect(
        "nothing-planted",
        "yellow",
        f"{did_not} the state of its model twice from there {until} (state_dict()), so that no "
        "bad checkpoint was loaded.",
        "Plan it on a rank that saves, and well before the last two checkpoints.",
    )


def _bad_checkpoint_kept(history: History, cut: Cut) -> Defect:
    """The finding about a result that stands on a checkpoint which was made bad."""
    remedy = (
        "Compare replicas before they are saved; one that differs is then not saved:\n"
        "    Checkpointer(directory, certify=100)"
        if cut.fault.how == REPLICA
        else "Keep a checksum with each file, let a loss that is not finite be an error, and let "
        "undaunted choose which checkpoint to load. Its Checkpointer does the first and the last."
    )
    return Defect(
        "bad-checkpoint-kept",
        "red",
        f"The finished run stands on a checkpoint that was made bad ({cut.fault.how})"
        f"{_made(history, cut)}: its result is another.",
        remedy,
    )


def _made(history: History, cut: Cut) -> str:
    """Return what the nemesis did for a fault, in brackets."""
    notes = history.outcome.notes
    what = next((note.text for note in notes if note.fault == cut.fault.id and note.text), "")
    return f" ({what})" if what else ""


def _damage_not_noticed(history: History, cut: Cut) -> Defect:
    return Defect(
        "damage-not-noticed",
        "red",
        f"The ranks went on with a checkpoint that was damaged{_made(history, cut)}: nothing "
        "checks what is loaded, so that a bit that a disk loses changes the result.",
        "Keep a checksum with each file and compare it before loading; torch.load does not. "
        "undaunted's Checkpointer checks every byte and falls back to an older checkpoint.",
    )
