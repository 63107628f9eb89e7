"""The command line of `undaunted chaos`: its own options, those of `undaunted run`, the program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.base.durations import parse_seconds
from undaunted.chaos.trials.generator import check_kind
from undaunted.chaos.trials.kinds import KINDS
from undaunted.cli.parse import UsageError, parse, words_of_option
from undaunted.cli.settings import with_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DEFAULT_FAULTS = ("exception", "kill", "hang", "stop", "segfault", "sigterm")
DEFAULT_SEED = 0
_ALL = "all"
_MIB = 1 << 20
_MOST = 10_000

HELP = """\
Usage: undaunted chaos [OPTIONS] [OPTIONS OF undaunted run]
                       SCRIPT [ARGUMENTS OF THE SCRIPT]

Finds out whether a training script survives failures: runs it once undisturbed,
then under planned faults, and says what became of each.

Examples:
  # 6 kinds of faults, one run each, on 2 workers; {dir} is a new directory for
  # the checkpoints of each run
  undaunted chaos --nproc-per-node 2 train.py --checkpoints {dir}
  # 20 random kills and hangs, 4 in each run; the same ones with the same seed
  undaunted chaos --faults kill,hang --rounds 10 --per-run 4 --seed 7 \\
      --nproc-per-node 2 train.py --checkpoints {dir}
  # in CI
  undaunted chaos --plan faults.yaml --junit chaos.xml train.py

Faults:
  --faults KINDS     Kinds of faults, separated by commas; all = every kind
                     [exception,kill,hang,stop,segfault,sigterm]
  --rounds N         How often each kind happens [1]
  --per-run K        How many faults one run of the script has [1]
  --seed N           Decides what is random: ranks, iterations, mixture [0]
  --plan FILE        A plan in YAML instead of --faults, --rounds, --per-run
  --save-plan FILE   Write the plan, with nothing random left, for --plan
  --list-faults      Say what each kind is, and end

Runs:
  --dir DIR          Where everything is kept [./undaunted-chaos/START]
  --checkpoint-dir DIR
                     Where the script keeps its checkpoints, if not in {dir}; on
                     the file system of --dir; it is moved away after each run
  --keep-all         Keep the checkpoints of all runs, not only of those with a
                     red or yellow fault
  --in-dir           Start the script in {dir}, for scripts that save to their
                     current directory
  --deadline TIME    How long a run may take, as in 10m [from the undisturbed
                     run, which may take 1h]
  --disk-size MIB    Size of the small disk of disk-full [3 x what the
                     undisturbed run leaves, + 16]

Results:
  --json             Print the result as JSON; it is in DIR/result.json too
  --junit FILE       Write JUnit XML: a test case for each fault
  --html FILE        Write a page that needs nothing else

Exits with 0 if no fault is red, 1 if one is, 2 if nothing could be judged:
wrong use, a script that fails undisturbed, or not one fault that was judged.
undaunted run --help lists the other options; limits for hangs, restarts and the
time for saving are set from the undisturbed run where you set none.
"""


class Arguments(NamedTuple):
    """What the command line says.

    Attributes:
        own: values of our options, by name; all are there.
        options: words that belong to ``undaunted run``.
        given: names of its options that were given, on the command line, by variable or file.
        program: the user's program with its arguments, after ``options``.
    """

    own: dict[str, Any]
    options: list[str]
    given: frozenset[str]
    program: list[str]


def read_arguments(argv: Sequence[str], environ: Mapping[str, str], cwd: str) -> Arguments | None:
    """Read a command line; return None if help was asked for.

    Raises:
        UsageError: something is unknown or makes no sense.
    """
    own: dict[str, Any] = {name: default for name, (_, default) in _OPTIONS.items()}
    seen: set[str] = set()
    options: list[str] = []
    position = 0
    while position < len(argv) and argv[position].startswith("-"):
        word = argv[position]
        if word in {"-h", "--help"}:
            return None
        if word == "--":
            position += 1
            break
        name, equals, value = word.replace("_", "-").removeprefix("--").partition("=")
        if not word.startswith("--") or name not in _OPTIONS:
            taken = words_of_option(argv[position:])
            options += argv[position : position + taken]
            position += taken
            continue
        position += 1
        seen.add(name)
        value = word.partition("=")[2]
        if _OPTIONS[name][0] is None:
            if equals:
                raise UsageError(f"--{name} takes no value, but was given {value!r}")
            own[name] = True
            continue
        if not equals:
            if position == len(argv) or argv[position].startswith("--"):
                raise UsageError(f"--{name} needs a value")
            value = argv[position]
            position += 1
        own[name] = _convert(name, value)
    _check_own(own, seen)
    program = list(argv[position:])
    given = _check_run_options(options, program, environ, cwd, own)
    return Arguments(own, options, given, program)


def _convert(name: str, text: str) -> Any:
    convert = _OPTIONS[name][0]
    assert convert is not None
    try:
        return convert(text)
    except ValueError as error:
        raise UsageError(f"--{name}: {error}") from None


def _check_own(own: Mapping[str, Any], seen: set[str]) -> None:
    without = sorted(seen & {"faults", "rounds", "per-run"})
    if own["plan"] is not None and without:
        raise UsageError(f"--plan says which faults happen; leave --{without[0]} out")


def _check_run_options(
    options: list[str],
    program: list[str],
    environ: Mapping[str, str],
    cwd: str,
    own: Mapping[str, Any],
) -> frozenset[str]:
    if own["list-faults"]:
        return frozenset()
    parsed, _ = with_file(parse([*options, "--", *program], environ), cwd)
    for name, instead in _NOT_OURS.items():
        if name in parsed.sources:
            raise UsageError(f"{parsed.sources[name]} cannot be used here: {instead}")
    if not parsed.values["standalone"] and parsed.values["nnodes"] != (1, 1):
        raise UsageError("--nnodes: chaos runs are on one node; leave it out")
    if not parsed.target:
        raise UsageError("no SCRIPT is given; see undaunted chaos --help")
    return frozenset(parsed.sources)


_NOT_OURS = {
    "run-dir": "each run has its own, below --dir",
    "inject-fault": "say which faults happen with --faults or --plan",
}


def _kinds(text: str) -> tuple[str, ...]:
    if text.strip() == _ALL:
        return tuple(KINDS)
    kinds = tuple(dict.fromkeys(filter(None, (word.strip() for word in text.split(",")))))
    if not kinds:
        raise ValueError("name at least one kind of fault; --list-faults says which there are")
    for kind in kinds:
        check_kind(kind)
    return kinds


def _whole(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= _MOST:
            raise ValueError(f"{text!r} is no whole number from {least} to {_MOST}")
        return int(text)

    return convert


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ValueError(f"{text!r} is no whole number of at most 9 digits")
    return int(text)


def _time(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise ValueError("a run takes time; give more than 0")
    return seconds


def _path(text: str) -> Path:
    if not text:
        raise ValueError("name a file or directory")
    return Path(text)


def _mebibytes(text: str) -> int:
    return _whole(1)(text) * _MIB


# Name to how the value is read, and the default; None = an option without a value.
_OPTIONS: dict[str, tuple[Callable[[str], Any] | None, Any]] = {
    "faults": (_kinds, DEFAULT_FAULTS),
    "rounds": (_whole(1), 1),
    "per-run": (_whole(1), 1),
    "seed": (_seed, None),
    "plan": (_path, None),
    "save-plan": (_path, None),
    "list-faults": (None, False),
    "dir": (_path, None),
    "checkpoint-dir": (_path, None),
    "in-dir": (None, False),
    "keep-all": (None, False),
    "deadline": (_time, None),
    "disk-size": (_mebibytes, None),
    "json": (None, False),
    "junit": (_path, None),
    "html": (_path, None),
}
