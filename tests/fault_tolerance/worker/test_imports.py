from __future__ import annotations

import sys
from pathlib import Path

import pytest

from undaunted.base.process import thread_count
from undaunted.fault_tolerance.worker import imports
from undaunted.fault_tolerance.worker.imports import Imports, open_devices


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
