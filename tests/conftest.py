"""What every test gets: leak checks, an environment of its own, reproducible examples."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["tests.golden", "tests.leaks"]

# Of tests that `make` runs by themselves.
MARKS = ("e2e", "docs", "slurm", "integration")

IN_CI = os.environ.get("CI") == "true"

# What the shell of a developer, or a launcher around pytest, would tell the code under test.
OUTSIDE = ("UNDAUNTED_", "FT_", "PET_", "TORCHELASTIC_", "SLURM_", "MASTER_", "OMP_NUM_THREADS")
OUTSIDE_EXACT = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
for _name in [n for n in os.environ if n.startswith(OUTSIDE) or n in OUTSIDE_EXACT]:
    del os.environ[_name]

# What is ignored here (under nohup, or in the background of a script) would be ignored by all
# programs that tests start. Handlers are not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda _number, _frame: None)

# A busy machine is no bug, and a failure in CI must be reproducible by running it again.
hypothesis.settings.register_profile("undaunted", deadline=None, derandomize=IN_CI)
hypothesis.settings.load_profile("undaunted")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of the tests with a mark, only files that name it are imported; the rest takes a minute."""
    mark = config.option.markexpr.partition(" and ")[0]
    if mark not in MARKS or collection_path.suffix != ".py":
        return None
    return None if f"mark.{mark}" in collection_path.read_text() else True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """No test may have a mark that its file does not name: it would never run."""
    named = {path: path.read_text() for path in {item.path for item in items}}
    for item in items:
        for mark in MARKS:
            if item.get_closest_marker(mark) and f"mark.{mark}" not in named[item.path]:
                raise pytest.UsageError(f"{item.path}: mark.{mark} must be written there")
    yield
    if config.option.markexpr.partition(" and ")[0] in ("docs", "integration"):
        items[:] = long_ones_first(items)


def long_ones_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """So that none is left to run alone at the end. Their limits say which they are.

    A worker of pytest-xdist takes two at the beginning: behind each long one is a short one.
    """
    limits = {item: item.get_closest_marker("timeout") for item in items}
    ordered = sorted(items, key=lambda item: limits[item].args[0] if limits[item] else 0.0)
    half = len(ordered) // 2
    pairs = itertools.zip_longest(reversed(ordered[half:]), ordered[:half])
    return [item for pair in pairs for item in pair if item is not None]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported stays: collections of garbage, as tests ask for them, skip it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a run that skipped everything fails: nothing was tested."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not IN_CI or reporter is None or session.config.option.collectonly:
        return
    executed = [
        k for k in ("passed", "failed", "xfailed", "xpassed", "error") if reporter.stats.get(k)
    ]
    if not executed and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line("CI=true and no test was executed: this run counts as failed", red=True)
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.fixture(scope="module")
def no_compiler() -> Iterator[None]:
    """Ranks that tests start from now on do not import torch's compiler, see tests/no_compiler."""
    there = str(Path(__file__).with_name("no_compiler"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", there, prepend=os.pathsep)
        yield


@pytest.fixture(autouse=True)
def no_writer_of_another_test():
    """A test that used the rank API without a launcher must not decide it for the next ones."""
    from undaunted.progress import writer

    writer.current = writer._NotYet()


@pytest.fixture(autouse=True)
def no_handlers_of_another_test():
    """A session that has stopped keeps its handlers, until the next signal comes."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
