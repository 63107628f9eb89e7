"""`undaunted chaos`: a user's script under planned faults."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted import __version__
from undaunted.base.ids import new_run_id
from undaunted.base.streams import take_any_text
from undaunted.chaos.generator import wanted_of
from undaunted.chaos.kinds import KINDS
from undaunted.chaos.output import machine, page, terminal
from undaunted.chaos.places import ChaosDirectory, PlaceError
from undaunted.chaos.plan import PlanError
from undaunted.chaos.plan_file import read_plan, write_plan
from undaunted.chaos.reference import NoMeasureError
from undaunted.chaos.run import Campaign, ChaosError, Request
from undaunted.cli.chaos_arguments import CHAOS, DEFAULT_SEED, Arguments, read_arguments
from undaunted.cli.command import HelpAsked
from undaunted.cli.messages import USAGE_ERROR, UsageError, complain, printing
from undaunted.journal.files import write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.chaos.generator import Wanted
    from undaunted.chaos.result import Result

CHAOS_RUNS = "undaunted-chaos"  # in the current directory
RESULT_FILE = "result.json"
_RED = 1
_INTERRUPTED = 130
_NOT_JUDGED = (
    "no fault was judged, so that nothing is known about this script; the verdict of each fault "
    "says why, and what to change"
)


def main(argv: Sequence[str]) -> int:
    """Run a script under planned faults and print what became of each.

    Args:
        argv: arguments after ``undaunted chaos``.

    Returns:
        0 if a fault was judged and none is red, 1 if one is, 2 if nothing could be judged or a
        file could not be written, 130 after Ctrl-C.
    """
    try:
        arguments = read_arguments(argv, os.environ, str(Path.cwd()))
        if arguments.own.list_faults:
            _list_faults()
            return 0
        return _run(arguments)
    except HelpAsked as asked:
        return CHAOS.explain(asked)
    except (UsageError, PlanError, PlaceError, NoMeasureError, ChaosError) as error:
        return complain(CHAOS.name, error)


def _run(arguments: Arguments) -> int:
    own = arguments.own
    wanted, seed = _wanted(arguments)
    request = Request(
        options=arguments.options,
        given=arguments.given,
        program=_program(arguments),
        environ=dict(os.environ),
        wanted=wanted,
        seed=seed,
        checkpoint_dir=own.checkpoint_dir.absolute() if own.checkpoint_dir else None,
        in_dir=own.in_dir,
        keep_all=own.keep_all,
        deadline_s=own.deadline,
        disk_bytes=own.disk_size,
        version=__version__,
    )
    _check_files(arguments)
    progress = _Progress()
    place = ChaosDirectory(own.dir or Path(CHAOS_RUNS, new_run_id()))
    try:
        campaign = Campaign(request, place, progress.say)
        campaign.run()
        _show(campaign.result, as_json=arguments.own.json)
        written = _write(campaign, arguments, place)
        return _exit_code(campaign.result, written=written)
    finally:
        progress.end_line()
        place.close()


def _wanted(arguments: Arguments) -> tuple[Sequence[Wanted], int]:
    own = arguments.own
    if own.plan is not None:
        draft = read_plan(own.plan)
        seed = draft.seed if own.seed is None else own.seed
        return draft.faults, DEFAULT_SEED if seed is None else seed
    seed = DEFAULT_SEED if own.seed is None else own.seed
    wanted = wanted_of(own.faults, runs_per_kind=own.rounds, faults_per_run=own.per_run, seed=seed)
    return wanted, seed


def _program(arguments: Arguments) -> list[str]:
    """Return the program; started elsewhere, its path must not depend on where we are."""
    program = list(arguments.program)
    if arguments.own.in_dir and Path(program[0]).is_file():
        program[0] = str(Path(program[0]).absolute())
    return program


def _check_files(arguments: Arguments) -> None:
    """Make sure before hours have passed that results can be written."""
    own = arguments.own
    for name, path in (("junit", own.junit), ("html", own.html), ("save-plan", own.save_plan)):
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"--{name} {path} is a directory; name a file")
        if path.exists() and not os.access(path, os.W_OK):
            raise UsageError(f"--{name} {path} cannot be written to; name another file")
        if not path.exists() and not os.access(path.absolute().parent, os.W_OK):
            raise UsageError(f"--{name} {path}: its directory cannot be written to; name another")


def _show(result: Result, *, as_json: bool) -> None:
    take_any_text(for_programs=as_json)
    with printing():
        if as_json:
            print(machine.to_json(result), end="")
        else:
            terminal.show(result, sys.stdout)


def _write(campaign: Campaign, arguments: Arguments, place: ChaosDirectory) -> bool:
    """Write all files, after hours: one that cannot be written is named and keeps back no other."""
    own, result = arguments.own, campaign.result
    written = True
    try:
        place.write(RESULT_FILE, machine.to_json(result))
    except OSError as error:
        written = _not_written(error.filename, error)
    files: dict[Path, str] = {}
    if own.save_plan is not None and campaign.plan is not None:
        files[own.save_plan] = write_plan(campaign.plan)
    if own.junit is not None:
        files[own.junit] = machine.to_junit(result)
    if own.html is not None:
        files[own.html] = page.to_html(result)
    for path, text in files.items():
        try:
            write_output(path, text)
        except OSError as error:
            written = _not_written(path, error)
    return written


def _not_written(path: object, error: OSError) -> bool:
    complain(CHAOS.name, f"{path} cannot be written: {error.strerror}")
    return False


def _exit_code(result: Result, *, written: bool) -> int:
    if result.red:
        return _RED
    if result.interrupted:
        return _INTERRUPTED
    if not result.judged:
        return complain(CHAOS.name, _NOT_JUDGED)
    return 0 if written else USAGE_ERROR


class _Progress:
    """Shows how far it has come, on standard error, so that results can be piped."""

    def __init__(self) -> None:
        self._in_line = False

    def say(self, text: str) -> None:
        self._in_line = not text.endswith("\n")
        print(text, end="", file=sys.stderr, flush=True)

    def end_line(self) -> None:
        if self._in_line:
            self.say("\n")


def _list_faults() -> None:
    width = max(map(len, KINDS))
    for kind in KINDS.values():
        needs = f" (needs {kind.needs})" if kind.needs else ""
        ways = f" (in turn: {', '.join(kind.hows)})" if kind.hows else ""
        print(f"{kind.name:{width}}  {kind.text}{needs}{ways}")
