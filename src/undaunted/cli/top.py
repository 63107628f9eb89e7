"""``undaunted top``: what every rank of a run is doing now, on one screen."""

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from undaunted.base.options import Kind, Opt
from undaunted.base.streams import take_any_text
from undaunted.base.values import Flag
from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError, json_text, printing
from undaunted.cli.run_journals import no_journal
from undaunted.journal.reader import DEFAULT_RUNS, newest_run

if TYPE_CHECKING:
    from undaunted.top.source import Source

_LEAST_INTERVAL_S = 0.1
_MOST_INTERVAL_S = 3600.0


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _LEAST_INTERVAL_S <= seconds <= _MOST_INTERVAL_S:
        raise ValueError(
            f"{text!r} is not a number of seconds from {_LEAST_INTERVAL_S:g} to "
            f"{_MOST_INTERVAL_S:g}"
        )
    return seconds


class TopOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted top`."""

    once: Annotated[
        Flag,
        Opt(
            "Print the present moment and end, as it does where the output is no terminal",
            "Options",
        ),
    ] = False
    json: Annotated[Flag, Opt("The same as JSON")] = False
    interval: Annotated[
        float, Kind(_interval, "SECONDS"), Opt("Time between two looks at the ranks")
    ] = 1.0


TOP = Command(
    "top",
    TopOptions,
    "[OPTIONS] [RUN_DIR]",
    f"""\
Shows what every rank of a run is doing now, live. Keys: q quit, p pause, s
sort, arrows and PgUp and PgDn scroll.

RUN_DIR is the directory of the run; without it, the newest one under
./{DEFAULT_RUNS}.
""",
    operand="RUN_DIR",
)


def main(argv: Sequence[str]) -> int:
    """Show a run.

    Args:
        argv: arguments after ``undaunted top``.

    Returns:
        0, or 2 if the arguments are wrong or there is no run to show.

    Raises:
        SystemExit: the process was told to end.
    """
    return TOP.run(argv, _show)


def _show(parsed: Parsed[TopOptions]) -> int:
    options = parsed.options
    run_dir = Path(parsed.target) if parsed.target else newest_run()
    if run_dir is None:
        raise UsageError(
            f"no run under ./{DEFAULT_RUNS}; name the directory of a run: undaunted top RUN_DIR"
        )
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    live = live and not options.once and not options.json
    try:
        run_dir.stat()
        if run_dir.is_dir():
            os.scandir(run_dir).close()
    except FileNotFoundError:
        raise UsageError(
            f"{run_dir} does not exist; `undaunted run` prints the directory when a run starts"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{run_dir} cannot be read: {error.strerror}; run as the launcher's user"
        ) from None
    from undaunted.top.source import Source

    source = Source(run_dir)
    try:
        if live:
            return _live(source, run_dir, options.interval)
        return _once(source, run_dir, as_json=options.json)
    finally:
        source.close()


def _live(source: "Source", run_dir: Path, interval_s: float) -> int:
    from undaunted.top.journals import Watch
    from undaunted.top.screen import Screen
    from undaunted.top.terminal import Terminal

    keys_fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    colour = not os.environ.get("NO_COLOR")
    terminal = Terminal(sys.stdout.fileno(), keys_fd, colour=colour)
    watch = Watch(run_dir)
    try:
        Screen(source, watch, terminal, interval_s).run()
    except KeyboardInterrupt:
        pass  # the usual way to leave such a screen
    except OSError:
        pass  # the terminal is gone, and its user
    finally:
        watch.close()
    return 0


def _once(source: "Source", run_dir: Path, *, as_json: bool) -> int:
    source.read_all()
    if not source.found:
        raise UsageError(no_journal(run_dir))
    job = source.job()
    if as_json:
        text = json_text(job)
    else:
        from undaunted.base.console import plain
        from undaunted.top.view import snapshot

        text = plain(snapshot(job))
    take_any_text(for_programs=as_json)
    with printing():
        sys.stdout.write(text)
    return 0
