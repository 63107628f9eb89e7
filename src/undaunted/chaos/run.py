"""A chaos run from its beginning to its end: undisturbed, plan, disturbed, judgement."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.text import format_duration, one_line
from undaunted.chaos import bounds
from undaunted.chaos.checker.verdict import judge
from undaunted.chaos.generator import settle
from undaunted.chaos.history import read_history
from undaunted.chaos.kinds import KINDS
from undaunted.chaos.nemesis import slow_network, small_disk
from undaunted.chaos.nemesis.conduct import WORK_DIR, Trial, conduct
from undaunted.chaos.nemesis.helper import NotPossibleError
from undaunted.chaos.outcome import Outcome, write_outcome
from undaunted.chaos.output.words import size
from undaunted.chaos.places import (
    PLACEHOLDER,
    UNDISTURBED,
    ChaosDirectory,
    check_checkpoint_dir,
    keep_checkpoints,
    remove_checkpoints,
)
from undaunted.chaos.plan_file import write_plan
from undaunted.chaos.reference import Reference, end_of_output, found_iteration, measure
from undaunted.chaos.result import Result, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from undaunted.chaos.checker.values import Judgement
    from undaunted.chaos.generator import Wanted
    from undaunted.chaos.plan import Plan, Planned

PLAN_FILE = "plan.yaml"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class ChaosError(Exception):
    """Chaos cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class Request:
    """The wishes of the user.

    Attributes:
        options: of ``undaunted run``.
        given: names of options that the user has set, which are left as they are.
        program: the user's program with its arguments.
        environ: of the launchers.
        wanted: the faults, with what is to be random.
        seed: decides what is random.
        checkpoint_dir: where the program keeps its checkpoints, None = in ``{dir}``.
        in_dir: start the program in ``{dir}``.
        keep_all: keep the checkpoints of all runs, not only of red and yellow ones.
        deadline_s: how long any run may take; None = by what the undisturbed one takes.
        disk_bytes: size of the small disk; None = by what the undisturbed run leaves.
        version: of undaunted.
    """

    options: Sequence[str]
    given: frozenset[str]
    program: Sequence[str]
    environ: Mapping[str, str]
    wanted: Sequence[Wanted]
    seed: int = 0
    checkpoint_dir: Path | None = None
    in_dir: bool = False
    keep_all: bool = False
    deadline_s: float | None = None
    disk_bytes: int | None = None
    version: str = ""


class Campaign:
    """Makes the runs, one after the other.

    Attributes:
        result: what is known by now.
        plan: None until the undisturbed run is over.
    """

    def __init__(self, request: Request, place: ChaosDirectory, say: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            request: what the user wants.
            place: where everything is kept.
            say: shows text to the user as it comes, without adding a line break.
        """
        self._request = request
        self._place = place
        self._say = say
        self.plan: Plan | None = None
        self._were_there = set(os.listdir())
        kept = request.checkpoint_dir
        self._place_was_there = kept is not None and kept.exists()
        self.result = Result(
            version=request.version,
            argv=list(request.program),
            seed=request.seed,
            started_wall=time.time(),
            directory=str(place.path),
        )

    def run(self) -> None:
        """Make all runs and judge them. A user who has enough gets what there is by then.

        Raises:
            ChaosError: a run cannot be made, or found what another one had left.
            NoMeasureError: the undisturbed run failed or took no step.
            PlaceError: the directory of the checkpoints cannot be used.
            PlanError: a fault that this program cannot have.
        """
        started = time.monotonic()
        try:
            self._run()
        except KeyboardInterrupt:
            self._say("interrupted\n")
            self._know(interrupted=True)
        except TimeoutError as error:  # of a process; it is an OSError, but about no file
            raise ChaosError(
                f"{error}: it waits for a device or a file system; repair that, then start again"
            ) from None
        except OSError as error:
            where, is_full = error.filename or self._place.path, error.errno in _FULL
            remedy = "make room, or name" if is_full else "name"
            raise ChaosError(
                f"{where}: {error.strerror or error}; {remedy} another directory (--dir)"
            ) from None
        finally:
            self._know(
                seconds=time.monotonic() - started, checkpoint_bytes=self._place.left_bytes()
            )

    def _run(self) -> None:
        reference = self._undisturbed()
        plan = self.plan = settle(
            self._request.wanted,
            seed=self._request.seed,
            world_size=reference.world_size,
            first=reference.first,
            last=reference.last,
        )
        self._place.write(PLAN_FILE, write_plan(plan))
        not_possible = self._not_possible(plan, reference)
        runs = plan.runs()
        for position, (number, faults) in enumerate(runs.items(), start=1):
            self._say(f"run {position} of {len(runs)}: {_planned(faults)} ... ")
            directory = self._disturbed(number, faults, reference, not_possible)
            verdicts = self._judge(directory, faults, reference)
            if self._may_go(verdicts):
                remove_checkpoints(directory)
        if self._may_go(self.result.verdicts):
            remove_checkpoints(self._place.run_directory(UNDISTURBED))

    def _undisturbed(self) -> Reference:
        self._say("undisturbed run ... ")
        directory = self._place.new_run(UNDISTURBED, ())
        deadline_s = self._request.deadline_s or bounds.REFERENCE_S
        outcome = self._conduct(self._trial(directory, self._request.options, deadline_s))
        if outcome.interrupted:
            raise KeyboardInterrupt
        history = read_history(directory)
        reference = measure(directory, history)
        left = f", leaves {size(reference.left_bytes)}" if reference.left_bytes else ""
        self._say(
            f"iterations {reference.first} to {reference.last} in "
            f"{format_duration(outcome.seconds)}{left}\n"
        )
        self._know(
            runs=[run_of(history)],
            iterations=(reference.first, reference.last),
            world_size=reference.world_size,
        )
        return reference

    def _disturbed(
        self,
        number: int,
        faults: Sequence[Planned],
        reference: Reference,
        not_possible: Mapping[str, str],
    ) -> Path:
        """Make a run; return its directory."""
        directory = self._place.new_run(str(number), faults)
        skipped = {f.id: not_possible[f.kind] for f in faults if f.kind in not_possible}
        left = tuple(fault for fault in faults if fault.id not in skipped)
        outcome = Outcome()
        if left:
            options = [*self._options(reference, len(left)), *self._request.options]
            lasting_s = sum(fault.seconds or 0.0 for fault in left)
            deadline_s = self._request.deadline_s or lasting_s + bounds.run_deadline(
                reference.seconds, len(left), reference.limit_s, reference.grace_s
            )
            trial = self._trial(directory, options, deadline_s)
            outcome = self._conduct(self._with_faults(trial, left, reference))
        if skipped:
            write_outcome(directory, msgspec.structs.replace(outcome, skipped=skipped))
        return directory

    def _judge(
        self, directory: Path, faults: Sequence[Planned], reference: Reference
    ) -> list[Judgement]:
        history = read_history(directory)
        if history.outcome.interrupted:
            raise KeyboardInterrupt
        if not history.launches and history.outcome.exit_codes:
            raise ChaosError(
                f"run {history.name}: `undaunted run` did not begin. {end_of_output(directory)}"
            )
        begun = found_iteration(history, reference.history)
        nothing_to_do = begun is None and history.outcome.exit_codes == [0]
        if nothing_to_do or begun not in (None, reference.first):
            what = "took no step" if nothing_to_do else f"began with iteration {begun}"
            raise ChaosError(
                f"run {history.name} {what}, the undisturbed one began with {reference.first}: it "
                f"found checkpoints of a run before it. {self._own_place()}"
            )
        verdicts = judge(reference.history, history, faults)
        self._know(
            runs=[*self.result.runs, run_of(history)],
            verdicts=[*self.result.verdicts, *verdicts],
        )
        self._say(f"{_became(verdicts)}, {format_duration(history.outcome.seconds)}\n")
        return verdicts

    # --- below ------------------------------------------------------------------------------------

    def _own_place(self) -> str:
        """Say how each run gets a separate place, by the files that the program has left."""
        folders = sorted(path.name for path in Path.cwd().iterdir() if path.is_dir())
        left = [n for n in folders if n not in self._were_there and n != "__pycache__"]
        where = f" (new in {Path.cwd()}: {', '.join(left)})" if left else ""
        folder = left[0] if left else "FOLDER"
        return (
            f"Give each run a separate place{where}. If the program takes a folder, say "
            f"{PLACEHOLDER} there. If it chooses one below its current directory, such as "
            "lightning_logs of Lightning or an output_dir of Transformers: --in-dir starts each "
            "run in a separate directory; or remove the folder, and give "
            f"--checkpoint-dir {folder}"
        )

    def _may_go(self, verdicts: Sequence[Judgement]) -> bool:
        """Whether nobody needs the checkpoints of these faults any more."""
        good = all(verdict.colour in ("green", "skipped") for verdict in verdicts)
        return good and not self._request.keep_all

    def _trial(self, directory: Path, options: Sequence[str], deadline_s: float) -> Trial:
        work = directory / WORK_DIR
        return Trial(
            directory=directory,
            options=options,
            program=[word.replace(PLACEHOLDER, str(work)) for word in self._request.program],
            environ=self._request.environ,
            deadline_s=deadline_s,
            place=self._request.checkpoint_dir or work,
            cwd=work if self._request.in_dir else None,
            seed=self._request.seed,
        )

    def _with_faults(
        self, trial: Trial, faults: tuple[Planned, ...], reference: Reference
    ) -> Trial:
        kinds = {fault.kind for fault in faults}
        small = "disk-full" in kinds
        if small:
            trial.place.mkdir(mode=0o700, exist_ok=True)
        return replace(
            trial,
            faults=faults,
            small_disk_bytes=self._disk_bytes(reference) if small else 0,
            disk_full_s=bounds.disk_full_seconds(reference.seconds),
            slow_network="slow-network" in kinds,
            slow_s=bounds.slow_seconds(reference.limit_s),
            last=reference.last,
        )

    def _options(self, reference: Reference, faults: int) -> list[str]:
        """Return options that follow from the undisturbed run, where the user has set none."""
        options = {**reference.options(), "max-restarts": str(bounds.restarts(faults))}
        return [
            word
            for name, value in options.items()
            if name not in self._request.given
            for word in (f"--{name}", value)
        ]

    def _conduct(self, trial: Trial) -> Outcome:
        if self._request.checkpoint_dir is not None and not trial.small_disk_bytes:
            check_checkpoint_dir(self._request.checkpoint_dir, self._place.path)
        try:
            return conduct(trial)
        except NotPossibleError as error:
            raise ChaosError(
                f"{trial.directory.name}: what its faults need cannot be made any more: {error}"
            ) from None
        finally:
            keep_checkpoints(trial.place, trial.directory, was_there=self._place_was_there)

    def _not_possible(self, plan: Plan, reference: Reference) -> dict[str, str]:
        """Return the kinds of the plan that this machine does not allow, and why."""
        kinds = {fault.kind for fault in plan.faults}
        reasons = {}
        if "disk-full" in kinds:
            trial = self._place.path / "try"
            trial.mkdir(mode=0o700)
            reasons["disk-full"] = small_disk.not_possible(trial, self._disk_bytes(reference))
            trial.rmdir()
        if "slow-network" in kinds:
            reasons["slow-network"] = slow_network.not_possible()
        return {
            kind: f"it needs {KINDS[kind].needs}: {reason}"
            for kind, reason in reasons.items()
            if reason
        }

    def _disk_bytes(self, reference: Reference) -> int:
        return self._request.disk_bytes or bounds.small_disk_bytes(reference.left_bytes)

    def _know(self, **changes: object) -> None:
        self.result = msgspec.structs.replace(self.result, **changes)


def _planned(faults: Sequence[Planned]) -> str:
    return ", ".join(
        f"{f.kind} ({f'{f.how}, ' if f.how else ''}rank {f.rank}, iteration {f.iteration})"
        for f in faults
    )


def _became(verdicts: Sequence[Judgement]) -> str:
    worst = next(
        (v for colour in ("red", "yellow", "green") for v in verdicts if v.colour == colour), None
    )
    if worst is None:
        return f"skipped: {verdicts[0].skipped}" if verdicts else "nothing planned"
    why = f": {one_line(worst.findings[0].text, 160)}" if worst.findings else ""
    return worst.colour.upper() + why if worst.colour == "red" else worst.colour + why
