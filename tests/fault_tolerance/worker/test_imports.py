"""The template's imports, now and later."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        self.modules = modules
        self.later = Later(modules)
        self.imports = Imports()

    def fork(self, *changes: dict[str, str]) -> None:
        """Fork a worker for each, which changes its environment and imports the modules."""
        self.later.before_fork(len(changes))
        for change in changes:
            if (pid := os.fork()) == 0:
                try:
                    self.later.begin_worker(asked=True)
                    os.environ.update(change)
                    for module in self.modules:
                        importlib.util.find_spec(module)
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
        self.later.after_fork()

    def go_on(self, *, kill: bool = False) -> bool:
        """Return whether there was a trial."""
        ours, theirs = socket.socketpair()
        pid = 0
        with ours, theirs:
            while self.later.fd >= 0:
                assert process.wait_for_any([self.later.fd, -1]) == [self.later.fd]
                before = process.children()
                self.later.go_on(self.imports, ours)
                for pid in process.children() - before:
                    if kill:
                        os.kill(pid, signal.SIGKILL)
        return pid > 0

    def try_once(self, *, kill: bool = False) -> bool:
        """Fork two workers that import; return whether there was a trial."""
        self.fork({}, {})
        return self.go_on(kill=kill)


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


def test_nothing_is_tried_any_more_once_the_launcher_stops(package: Path) -> None:
    (package / "slow.py").write_text("import signal; signal.pause()")
    template = Template("latertest.slow")
    template.fork({}, {})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = process.children()
        while not (trials := process.children() - before):
            assert process.wait_for_any([template.later.fd]) == [template.later.fd]
            template.later.go_on(template.imports, ours)
        template.later.end()
        assert process.wait_for_any([template.later.fd]) == [template.later.fd]
        template.later.go_on(template.imports, ours)
        assert not trials & process.children(), "its template has waited for it"
    assert template.imports.done == []
    assert not template.try_once()


def test_a_trial_keeps_no_stream_open(package: Path) -> None:
    """Or whoever reads what the launcher prints would wait for it."""
    (package / "looks.py").write_text(
        "import os\n"
        "from latertest import template, wanted\n"
        "if os.getpid() != template:\n"
        "    open_here = [f'/dev/fd/{fd}' for fd in range(100)]\n"
        "    assert wanted not in {os.stat(f).st_ino for f in open_here if os.path.exists(f)}\n"
    )
    reader, writer = os.pipe()
    before = os.dup(1)
    package_itself: Any = sys.modules["latertest"]
    package_itself.template, package_itself.wanted = os.getpid(), os.fstat(writer).st_ino
    try:
        os.dup2(writer, 1)
        os.close(writer)
        os.close(reader)
        template = Template("latertest.looks")
        assert template.try_once()
    finally:
        os.dup2(before, 1)
        os.close(before)
    assert template.imports.done == ["latertest.looks"]


def test_trials_are_bounded(package: Path) -> None:
    (package / "slow.py").write_text("import signal; signal.pause()")
    template = Template("latertest.slow")
    assert [template.try_once(kill=True) for _ in range(4)] == [True, True, True, False]


def test_only_what_belongs_to_an_imported_package(package: Path) -> None:
    assert not Template("absent_package.module").try_once()
    assert not Template("latertest").try_once(), "it is there already"
    assert not Template().try_once()


@pytest.mark.parametrize("name", ["TORCHDYNAMO_VERBOSE", "TORCH_LOGS", "TORCHINDUCTOR_CACHE_DIR"])
def test_what_a_worker_has_set_for_an_import_comes_too_late_for_the_template(
    package: Path, name: str
) -> None:
    (package / "good.py").touch()
    template = Template("latertest.good")
    template.fork({}, {name: "1"})
    assert not template.go_on()
    assert not template.try_once(), "nor in later rounds"


def test_other_variables_do_no_harm(package: Path) -> None:
    (package / "good.py").touch()
    template = Template("latertest.good")
    template.fork({"OTHER": "1"}, {"TORCH": "1"})
    assert template.go_on()
    assert template.imports.done == ["latertest.good"]


def test_workers_that_end_before_the_import_say_nothing(package: Path) -> None:
    (package / "good.py").touch()
    template = Template("latertest.good")
    template.modules = ()
    template.fork({})
    assert not template.go_on()
    template.modules = ("latertest.good",)
    template.fork({})
    assert template.go_on(), "those of the next round do"


def test_a_worker_tells_when_nobody_wants_to_know_it_any_more(package: Path) -> None:
    (package / "good.py").touch()
    template = Template("latertest.good")
    gate, opens = os.pipe()
    template.later.before_fork(2)
    if (late := os.fork()) == 0:
        try:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.close(opens)
            template.later.begin_worker(asked=True)
            os.read(gate, 1)
            importlib.util.find_spec("latertest.good")
        finally:
            os._exit(0)
    if (other := os.fork()) == 0:
        try:
            template.later.begin_worker(asked=True)
            os.environ["TORCH_LOGS"] = "1"
            importlib.util.find_spec("latertest.good")
        finally:
            os._exit(0)
    os.waitpid(other, 0)
    template.later.after_fork()
    assert not template.go_on(), "one has changed what the import reads"
    os.close(opens)
    assert os.waitstatus_to_exitcode(os.waitpid(late, 0)[1]) == 0
    os.close(gate)


def test_a_worker_that_is_not_asked_and_one_that_has_closed_everything(package: Path) -> None:
    (package / "good.py").touch()
    before = list(sys.meta_path)
    later = Later(["latertest.good"])
    later.before_fork(1)
    later.begin_worker(asked=False)
    assert (sys.meta_path, later.fd) == (before, -1)
    later.before_fork(1)
    descriptors = {*os.listdir("/proc/self/fd")}
    later.begin_worker(asked=True)
    try:
        (fd,) = {*os.listdir("/proc/self/fd")} - descriptors
        with socket.socket() as other:
            os.dup2(other.fileno(), int(fd))  # the program's by now
            assert importlib.util.find_spec("latertest.good")
            assert os.fstat(int(fd)).st_ino == os.fstat(other.fileno()).st_ino
        os.close(int(fd))
    finally:
        sys.meta_path[:] = before


def test_a_template_that_is_gone_takes_its_trial_along(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial looks whether its parent is the template; here it is not."""
    (package / "good.py").write_text("")
    monkeypatch.setattr(imports.process, "die_with_parent", lambda parent: False)
    template = Template("latertest.good")
    assert template.try_once()
    assert template.imports.done == []
