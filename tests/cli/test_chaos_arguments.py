"""The command line of `undaunted chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from undaunted.chaos.kinds import KINDS
from undaunted.cli.chaos_arguments import DEFAULT_FAULTS, Arguments, read_arguments


def read(*argv: str, **environ: str) -> Arguments:
    return read_arguments(argv, environ, "/")


def test_defaults() -> None:
    arguments = read("train.py", "--faults", "mine")

    assert arguments.own.faults == DEFAULT_FAULTS
    assert arguments.own.rounds == arguments.own.per_run == 1
    assert arguments.options == []
    assert arguments.program == ["train.py", "--faults", "mine"]
    assert arguments.given == frozenset()


def test_options_of_run_are_passed_on() -> None:
    arguments = read(
        "--nproc-per-node", "2", "--seed", "7", "-m", "--ft-learn-timeouts", "package.train", "-m",
        PET_TERM_TIMEOUT="20",
    )  # fmt: skip

    assert arguments.options == ["--nproc-per-node=2", "--module", "--ft-learn-timeouts=true"]
    assert arguments.program == ["package.train", "-m"]
    assert arguments.own.seed == 7
    assert arguments.given == {"nproc-per-node", "module", "ft-learn-timeouts", "term-timeout"}


@pytest.mark.parametrize("words", [("--per-run=3",), ("--per_run", "3"), ("--per-run", "3")])
def test_spellings(words: tuple[str, ...]) -> None:
    assert read(*words, "train.py").own.per_run == 3


def test_values() -> None:
    own = read(
        "--faults", "kill, hang,kill", "--deadline", "2m", "--disk-size", "8", "--dir", "d",
        "--json", "--in-dir", "--", "train.py",
    ).own  # fmt: skip

    assert own.faults == ("kill", "hang")
    assert own.deadline == 120
    assert own.disk_size == 8 << 20
    assert own.dir == Path("d")
    assert own.json
    assert own.in_dir


def test_what_follows_two_dashes_is_the_program() -> None:
    arguments = read("--in-dir", "--nproc-per-node", "2", "--", "-odd.py", "--", "{dir}")

    assert arguments.options == ["--nproc-per-node=2"]
    assert arguments.program == ["-odd.py", "--", "{dir}"]


def test_all_faults() -> None:
    assert read("--faults", "all", "train.py").own.faults == tuple(KINDS)


def test_listing_needs_no_script() -> None:
    assert read("--list-faults").own.list_faults
