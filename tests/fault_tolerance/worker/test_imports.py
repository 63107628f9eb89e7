"""The template's imports, now and later."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from undaunted.base import process
from undaunted.base.process import thread_count
from undaunted.fault_tolerance.worker import imports
from undaunted.fault_tolerance.worker.imports import Imports, Later, open_devices

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def no_findings(monkeypatch):
    monkeypatch.setattr(imports, "_unsafe", list)


def test_an_import_that_works(module, no_findings):
    loaded = Imports()
    loaded.load(module("fine_module", "X = 1"))
    loaded.load("fine_module.X")  # an attribute, not a module
    assert (loaded.done, loaded.failed) == (["fine_module", "fine_module.X"], {})
    assert loaded.objection() == ""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("import nosuchmodule", "ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = = 1", "SyntaxError: "),
    ],
)
def test_an_import_that_fails(module, no_findings, text, error):
    loaded = Imports()
    loaded.load(module("failing_module", text))
    assert loaded.done == []
    assert loaded.failed["failing_module"].startswith(error)


def test_a_module_that_starts_a_thread_is_named(module, monkeypatch):
    # Another thread of the test run must not be blamed on it.
    before = thread_count()
    monkeypatch.setattr(imports, "thread_count", lambda: thread_count() - before + 1)
    loaded = Imports()
    loaded.load(module("quiet_module", ""))
    loaded.load(
        module(
            "busy_module",
            "import threading\nstop = threading.Event()\n"
            "thread = threading.Thread(target=stop.wait, args=(60,))\nthread.start()\n",
        )
    )
    try:
        assert loaded.objection() == (
            "the template has 2 threads (since the import of busy_module)"
        )
    finally:
        sys.modules["busy_module"].stop.set()
        sys.modules["busy_module"].thread.join()


def test_an_open_device_is_found(monkeypatch):
    assert open_devices() == []
    with Path("/dev/null").open("rb"), Path("/dev/urandom").open("rb"):
        assert open_devices() == []
        monkeypatch.setattr(imports, "_HARMLESS", ("/dev/null",))
        assert open_devices() == ["/dev/urandom"]
        assert "/dev/urandom open" in Imports().objection()


def test_cuda_initialised(monkeypatch):
    class Cuda:
        @staticmethod
        def is_initialized():
            return True

    class Torch:
        cuda = Cuda

    monkeypatch.setitem(sys.modules, "torch", Torch)
    assert "CUDA initialised" in Imports().objection()


def test_threads_without_a_known_origin(monkeypatch):
    monkeypatch.setattr(imports, "thread_count", lambda: 3)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert Imports().objection() == "the template has 3 threads"


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
    threads = set(threading.enumerate())
    assert template.try_once()
    assert template.imports.done == []
    assert set(threading.enumerate()) <= threads
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
    monkeypatch.setattr(imports.process, "die_with_parent", lambda parent: False)
    template = Template("latertest.good")
    assert template.try_once()
    assert template.imports.done == []
