"""``undaunted top``: what every rank of a run is doing now, on one screen."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.streams import discard_stdout, take_any_text
from undaunted.journal.newest import DEFAULT_RUNS, newest_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.top.source import Source

_USAGE_ERROR = 2
_LEAST_INTERVAL_S = 0.1
_MOST_INTERVAL_S = 3600.0


def main(argv: Sequence[str]) -> int:
    """Show a run.

    Args:
        argv: arguments after ``undaunted top``.

    Returns:
        0, or 2 if there is no run to show.

    Raises:
        SystemExit: the arguments are wrong, or the process was told to end.
    """
    options = _parser().parse_args(argv)
    run_dir = options.run_dir or newest_run()
    if run_dir is None:
        return _complain(
            f"no run under ./{DEFAULT_RUNS}; name the directory of a run: undaunted top RUN_DIR"
        )
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    live = live and not options.once and not options.json
    try:
        run_dir.stat()
        if run_dir.is_dir():
            os.scandir(run_dir).close()
    except FileNotFoundError:
        return _complain(
            f"{run_dir} does not exist; `undaunted run` prints the directory when a run starts"
        )
    except OSError as error:
        return _complain(f"{run_dir} cannot be read: {error.strerror}; run as the launcher's user")
    from undaunted.top.source import Source

    source = Source(run_dir)
    try:
        if live:
            return _live(source, run_dir, options.interval)
        return _once(source, run_dir, as_json=options.json)
    finally:
        source.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="undaunted top",
        description="Show what every rank of a run is doing now, live. Keys: q quit, p pause, "
        "s sort, arrows and PgUp and PgDn scroll.",
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        nargs="?",
        type=Path,
        help=f"directory of the run; default: the newest under ./{DEFAULT_RUNS}",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print the present moment and end; so it does where the output is no terminal",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="time between two looks at the ranks (default: 1)",
    )
    return parser


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _LEAST_INTERVAL_S <= seconds <= _MOST_INTERVAL_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {_LEAST_INTERVAL_S:g} to "
            f"{_MOST_INTERVAL_S:g}"
        )
    return seconds


def _live(source: Source, run_dir: Path, interval_s: float) -> int:
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
        pass  # the terminal is gone, and with it whoever looked
    finally:
        watch.close()
    return 0


def _once(source: Source, run_dir: Path, *, as_json: bool) -> int:
    source.read_all()
    if not source.found:
        return _complain(
            f"{run_dir} holds no journal (journal-NODE.jsonl); name the directory of a run, "
            "not the one above it"
        )
    job = source.job()
    if as_json:
        import msgspec

        text = msgspec.json.format(msgspec.json.encode(job), indent=2).decode() + "\n"
    else:
        from undaunted.journal.render import plain
        from undaunted.top.view import snapshot

        text = plain(snapshot(job))
    take_any_text(for_programs=as_json)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        return _complain(f"standard output: {error.strerror}")
    return 0


def _complain(text: str) -> int:
    print(f"undaunted top: {text}", file=sys.stderr)
    return _USAGE_ERROR
