"""Runs the user's program in this process as ``python script.py`` or ``python -m name`` would.

An exception of the program is recorded and then goes on up to the interpreter, which handles it
as always: SystemExit, the user's ``sys.excepthook``, death by SIGINT after a KeyboardInterrupt,
threads and atexit handlers. Only our own frames are taken out of its traceback.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import signal
import sys
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING

from undaunted.base.signals import NOT_FOR_OURS, handlers_off
from undaunted.fault_tolerance.worker import leaving
from undaunted.fault_tolerance.worker.bootstrap import report_stop_signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.fault_tolerance.worker.bootstrap import Page
    from undaunted.fault_tolerance.worker.messages import WorkerSpec

# Frames of these files are not the user's: this directory and, where the launcher has a copy of the
# package of its own, its boot.py.
_OURS = (
    os.path.dirname(__file__) + "/",  # noqa: PTH120
    getattr(sys.modules["__main__"], "__file__", None) or __file__,
)


def run(spec: WorkerSpec, page: Page, interpreter: Sequence[str]) -> None:
    """Run the program of ``spec``; returns or raises as the program does.

    Args:
        spec: the worker, already in its directory and with its environment.
        page: gets the time of the first line, and an exception that ends the program.
        interpreter: how Python was started, for ``sys.orig_argv``.
    """
    try:
        # See `template.serve`.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_FOR_OURS)
        _record_digests()
        _inject_faults()
        if spec.kind == "module":
            sys.orig_argv[:] = [*interpreter, "-m", spec.target, *spec.args]
            _prepare("-m", spec.args, path0=str(Path.cwd()))
            page.milestone_first_line()
            runpy._run_module_as_main(spec.target)  # type: ignore[attr-defined]  # noqa: SLF001
        elif spec.kind == "run_path":
            sys.orig_argv[:] = [*interpreter, spec.target, *spec.args]
            _prepare(spec.target, spec.args, path0=str(Path.cwd()))
            page.milestone_first_line()
            runpy.run_path(spec.target, run_name="__main__")
        else:
            sys.orig_argv[:] = [*interpreter, spec.target, *spec.args]
            _run_script(spec, page)
    except BaseException as error:
        with handlers_off():
            error.__traceback__ = _without_us(error.__traceback__)
            failed = leaving.failed(error)
            if failed and isinstance(error, SystemExit):
                report_stop_signal(spec)
            if failed and spec.exception_hook:
                page.record_error(error)
            _report_without_us()
        raise
    finally:
        page.program_ended()


def _record_digests() -> None:
    if os.environ.get("UNDAUNTED_DIGESTS"):
        from undaunted.digests import install

        install.install()


def _inject_faults() -> None:
    if os.environ.get("UNDAUNTED_FAULTS"):
        from undaunted.faults import trigger

        trigger.install()


def _run_script(spec: WorkerSpec, page: Page) -> None:
    # As the interpreter does: an absolute path, but not a normalised one.
    path = os.path.join(str(Path.cwd()), spec.target)  # noqa: PTH118
    if pkgutil.get_importer(path) is not None:  # a directory or a zip file
        sys.path.insert(0, path)
        _prepare(spec.target, spec.args, path0="")
        page.milestone_first_line()
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001
        return
    main = _prepare(spec.target, spec.args, path0=os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    code = _load(path, main, page if spec.exception_hook else None)
    page.milestone_first_line()
    exec(code, main.__dict__)  # noqa: S102 - the purpose


def _prepare(argv0: str, args: list[str], path0: str) -> ModuleType:
    """Set what every kind of program finds on its first line; return its new ``__main__``."""
    sys.argv[:] = [argv0, *args]
    if path0 and not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, path0)
    main = ModuleType("__main__")
    names = vars(main)
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    names["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def _load(path: str, main: ModuleType, page: Page | None) -> CodeType:
    """Return the code of a script, compiled or not; SystemExit 2 if it cannot be read."""
    try:
        with io.open_code(path) as file:
            data = file.read()
    except OSError as error:
        print(
            f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        if page is not None:  # or 2 looks like a code of the program's own
            page.record_error(type(error)(f"cannot read the script {path}: {error.strerror}"))
        sys.exit(2)
    main.__file__ = path
    main.__dict__["__cached__"] = None
    code: CodeType | None = pkgutil.read_code(io.BytesIO(data))
    if code is not None:
        main.__loader__ = SourcelessFileLoader("__main__", path)
        return code
    main.__loader__ = SourceFileLoader("__main__", path)
    return compile(data, path, "exec", dont_inherit=True)


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins with the user's program."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def _report_without_us() -> None:
    """Have the exception on its way to the interpreter reported without our frames.

    They come into its traceback again while it leaves them, so they are taken out at the last
    moment: in a hook around the user's.
    """
    users = getattr(sys, "excepthook", None)
    if users is None:
        return

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        sys.excepthook = users
        trace = _without_us(trace)
        error.__traceback__ = sys.last_traceback = trace
        users(kind, error, trace)

    sys.excepthook = report
