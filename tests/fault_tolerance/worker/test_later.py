"""Imports that wait until the first workers run, and are tried before."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.base import process
from undaunted.fault_tolerance.worker import later as module
from undaunted.fault_tolerance.worker.imports import Imports
from undaunted.fault_tolerance.worker.later import Later

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An imported package ``latertest``; tests add modules to it."""
    (tmp_path / "latertest").mkdir()
    (tmp_path / "latertest" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("latertest")
    yield tmp_path / "latertest"
    for name in [name for name in sys.modules if name.startswith("latertest")]:
        del sys.modules[name]


class Template:
    """What the template does with `Later`, in this process."""

    def __init__(self, *modules: str) -> None:
        self.later = Later(modules)
        self.imports = Imports()

    def try_once(self, *, kill: bool = False) -> bool:
        """Return whether there was a trial."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.later.begin(ours)
            if self.later.fd < 0:
                return False
            if kill:
                process.signal_pidfd(self.later.fd, signal.SIGKILL)
            assert process.wait_for_any([self.later.fd, -1]) == [self.later.fd]
            self.later.end(self.imports)
        return True


def test_what_does_no_harm_is_imported(package: Path) -> None:
    (package / "good.py").write_text("print('not shown')")
    template = Template("latertest.good")
    assert template.try_once()
    assert template.imports.done == ["latertest.good"]
    assert not template.try_once(), "once is enough"


@pytest.mark.parametrize(
    "code",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "raise ValueError",
        "import os; os._exit(3)",
    ],
)
def test_what_does_harm_is_not(package: Path, code: str) -> None:
    (package / "bad.py").write_text(code)
    template = Template("latertest.bad")
    threads = threading.active_count()
    assert template.try_once()
    assert (template.imports.done, threading.active_count()) == ([], threads)
    assert not template.try_once(), "and is not tried again"


def test_a_trial_that_was_killed_is_made_again(package: Path) -> None:
    (package / "slow.py").write_text("")
    template = Template("latertest.slow")
    assert template.try_once(kill=True)
    assert template.imports.done == []
    assert template.try_once()
    assert template.imports.done == ["latertest.slow"]


def test_trials_are_bounded(package: Path) -> None:
    (package / "slow.py").write_text("import signal; signal.pause()")
    template = Template("latertest.slow")
    assert [template.try_once(kill=True) for _ in range(4)] == [True, True, True, False]


def test_only_what_belongs_to_an_imported_package(package: Path) -> None:
    assert not Template("absent_package.module").try_once()
    assert not Template("latertest").try_once(), "it is there already"
    assert not Template().try_once()


def test_a_worker_forgets_the_trial(package: Path) -> None:
    (package / "slow.py").write_text("import signal; signal.pause()")
    later = Later(["latertest.slow"])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = process.children()
        later.begin(ours)
        (pid,) = process.children() - before
        later.forget()
        assert later.fd == -1
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_template_that_is_gone_takes_its_trial_along(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial looks whether its parent is the template; here it is not."""
    (package / "good.py").write_text("")
    monkeypatch.setattr(module.process, "die_with_parent", lambda parent: False)
    template = Template("latertest.good")
    assert template.try_once()
    assert template.imports.done == []
