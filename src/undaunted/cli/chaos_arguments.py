"""The command line of `undaunted chaos`: its own options, those of `undaunted run`, the program."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from undaunted.base.durations import parse_seconds
from undaunted.base.options import Kind, Opt
from undaunted.base.values import Flag, OptionalDirectory, OptionalFile
from undaunted.chaos.generator import check_kind
from undaunted.chaos.kinds import KINDS
from undaunted.cli.command import Command, Words
from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN
from undaunted.cli.settings import with_file

DEFAULT_FAULTS = ("exception", "kill", "hang", "stop", "segfault", "sigterm")
DEFAULT_SEED = 0
FAULTS = "Faults"
RUNS = "Runs"
RESULTS = "Results"
_ALL = "all"
_MIB = 1 << 20
_MOST = 10_000


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


def _mebibytes(text: str) -> int:
    return _whole(1)(text) * _MIB


_Number = Annotated[int, Kind(_whole(1), "N")]


class ChaosOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted chaos` beside those of `undaunted run`."""

    faults: Annotated[
        tuple[str, ...],
        Kind(_kinds, "KINDS", choices=(_ALL, *KINDS)),
        Opt(
            "Kinds of faults, separated by commas; all = every kind",
            FAULTS,
            shown=",".join(DEFAULT_FAULTS),
        ),
    ] = DEFAULT_FAULTS
    rounds: Annotated[_Number, Opt("How often each kind happens")] = 1
    per_run: Annotated[_Number, Opt("How many faults one run of the script has", metavar="K")] = 1
    seed: Annotated[
        int | None,
        Kind(_seed, "N"),
        Opt("Decides what is random: ranks, iterations, mixture", shown=str(DEFAULT_SEED)),
    ] = None
    plan: Annotated[
        OptionalFile, Opt("A plan in YAML instead of --faults, --rounds, --per-run")
    ] = None
    save_plan: Annotated[
        OptionalFile, Opt("Write the plan, with nothing random left, for --plan")
    ] = None
    list_faults: Annotated[Flag, Opt("Say what each kind is, and end")] = False
    dir: Annotated[
        OptionalDirectory,
        Opt("Keep everything there", RUNS, shown="./undaunted-chaos/START"),
    ] = None
    checkpoint_dir: Annotated[
        OptionalDirectory,
        Opt(
            "The folder of the script's checkpoints, if not {dir}; on the file system of --dir; "
            "it is moved away after each run"
        ),
    ] = None
    keep_all: Annotated[
        Flag,
        Opt("Keep the checkpoints of all runs, not only of those with a red or yellow fault"),
    ] = False
    in_dir: Annotated[
        Flag,
        Opt("Start the script in {dir}, for scripts that save to their current directory"),
    ] = False
    deadline: Annotated[
        float | None,
        Kind(_time, "TIME"),
        Opt(
            "How long a run may take, as in 10m",
            shown="from the undisturbed run, which may take 1h",
        ),
    ] = None
    disk_size: Annotated[
        int | None,
        Kind(_mebibytes, "MIB"),
        Opt(
            "Size of the small disk of disk-full",
            shown="3 x what the undisturbed run leaves, + 16",
        ),
    ] = None
    json: Annotated[
        Flag, Opt("Print the result as JSON; it is in DIR/result.json too", RESULTS)
    ] = False
    junit: Annotated[OptionalFile, Opt("Write JUnit XML: a test case for each fault")] = None
    html: Annotated[OptionalFile, Opt("Write a page that needs nothing else")] = None


CHAOS = Command(
    "chaos",
    ChaosOptions,
    """\
[OPTIONS] [OPTIONS OF undaunted run]
                       SCRIPT [ARGUMENTS OF THE SCRIPT]""",
    """\
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
""",
    "Exits with 0 if no fault is red, 1 if one is, 2 if nothing could be judged: wrong use, a "
    "script that fails undisturbed, or not one fault that was judged. undaunted run --help lists "
    "the other options; limits for hangs, restarts and the time for saving are set from the "
    "undisturbed run where you set none.",
    operand="SCRIPT",
    is_program=True,
    refused=RUN.refused,
)


class Arguments(NamedTuple):
    """The values of the command line.

    Attributes:
        own: our options.
        options: words that belong to ``undaunted run``.
        given: names of its options that were given, on the command line, by variable or file.
        program: the user's program with its arguments, after ``options``.
    """

    own: ChaosOptions
    options: list[str]
    given: frozenset[str]
    program: list[str]


def read_arguments(argv: Sequence[str], environ: Mapping[str, str], cwd: str) -> Arguments:
    """Read a command line.

    Raises:
        UsageError: something is unknown or makes no sense.
        HelpAsked: help was asked for.
    """
    words = CHAOS.sort(argv, RUN.spellings)
    parsed = CHAOS.read(words, {})
    own = parsed.options
    without = [name for name in ("faults", "per-run", "rounds") if parsed.is_given(name)]
    if own.plan is not None and without:
        raise UsageError(f"--plan says which faults happen; leave --{without[0]} out")
    given = frozenset() if own.list_faults else _given_to_run(words, environ, cwd)
    program = [words.target, *words.args] if words.target else []
    return Arguments(own, _options_of_run(words), given, program)


def _options_of_run(words: Words) -> list[str]:
    found = []
    for name, texts in words.given.items():
        option = RUN.spellings.get(f"--{name}")
        if option is not None and f"--{name}" not in CHAOS.spellings:
            found += [f"--{name}={text}" if option.metavar else f"--{name}" for text in texts]
    return found


def _given_to_run(words: Words, environ: Mapping[str, str], cwd: str) -> frozenset[str]:
    parsed, _ = with_file(RUN.read(words, environ), cwd)
    for name, instead in _NOT_OURS.items():
        if parsed.is_given(name):
            raise UsageError(f"{parsed.source(name)} cannot be used here: {instead}")
    if not parsed.options.standalone and parsed.options.nnodes != (1, 1):
        raise UsageError("--nnodes: chaos runs are on one node; leave it out")
    if not parsed.target:
        raise UsageError("no SCRIPT is given; see undaunted chaos --help")
    return frozenset(parsed.sources)


_NOT_OURS = {
    "run-dir": "each run has its own, below --dir",
    "inject-fault": "say which faults happen with --faults or --plan",
}
