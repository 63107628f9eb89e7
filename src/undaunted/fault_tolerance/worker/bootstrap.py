"""Turns a process into the worker of a spec: session, environment, files, evidence, page."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from undaunted.base import numa, oom_score, process
from undaunted.fault_tolerance.worker import numerics, streams
from undaunted.fault_tolerance.worker.page import Page

if TYPE_CHECKING:
    from undaunted.fault_tolerance.worker.spec import WorkerSpec

# Ranks are ended before the agent when memory runs out: the agent can start them again.
_OOM_SCORE = 100


def become(spec: WorkerSpec, *, forked: bool) -> Page:
    """Make this process the worker of ``spec``, up to the first line of the user's program.

    Args:
        spec: the worker.
        forked: from the template: it needs what a new process has by itself.

    Returns:
        The rank's page. Does not return for a spec of kind ``program``.

    Raises:
        SystemExit: a file or directory of the spec cannot be used; the text says what to do.
    """
    if forked:
        _leave_template(spec)
    oom_score.raise_own(_OOM_SCORE)
    _bind(spec)
    _enter_directory(spec)
    streams.redirect(spec.stdout, spec.stderr)
    if spec.kind == "program":
        _exec(spec)
    streams.write_whole_lines()
    if forked:
        numerics.renew(spec.env)
        if spec.numa_node >= 0:
            numerics.limit_torch_threads()
    page = Page.attach(spec)
    _arm_evidence(spec, page)
    return page


def _leave_template(spec: WorkerSpec) -> None:
    """Have what exec would give: own session, signals, environment, random numbers."""
    if not process.die_with_parent(spec.agent_pid):
        os._exit(1)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(spec.env)
    time.tzset()
    # A fork leaves it the template's, before Python 3.13.
    vars(threading.main_thread())["_native_id"] = threading.get_native_id()


def _bind(spec: WorkerSpec) -> None:
    """Keep this process on its NUMA node; memory that it shares with the template is elsewhere."""
    if spec.numa_node < 0:
        return
    try:
        numa.bind(spec.numa_node, strict=spec.numa_strict)
    except numa.NumaError as error:
        sys.exit(f"undaunted: local rank {spec.local_rank}: {error}")


def _enter_directory(spec: WorkerSpec) -> None:
    try:
        os.chdir(spec.cwd)
    except OSError as error:
        sys.exit(
            f"undaunted: local rank {spec.local_rank}: cannot enter the working directory "
            f"{spec.cwd!r}: {error.strerror}; start the launcher in one that exists on this node"
        )
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        multiprocessing.ORIGINAL_DIR = spec.cwd


def _exec(spec: WorkerSpec) -> NoReturn:
    """Become the executable. Exit codes are those a shell has for it."""
    try:
        os.execvpe(spec.target, [spec.target, *spec.args], spec.env)  # noqa: S606 - the purpose
    except OSError as error:
        found = not isinstance(error, FileNotFoundError)
        what = "is not executable" if found else "is not found; give its path, or correct PATH"
        print(f"undaunted: cannot run {spec.target!r}: it {what} ({error.strerror})",
              file=sys.stderr)  # fmt: skip
        os._exit(126 if found else 127)


def _arm_evidence(spec: WorkerSpec, page: Page) -> None:
    """Have all stacks written when the agent asks with a signal, whatever holds the GIL."""
    if spec.evidence_signal <= 0 or spec.evidence_fd < 0:
        return
    try:
        faulthandler.register(
            spec.evidence_signal, file=spec.evidence_fd, all_threads=True, chain=False
        )
    except (OSError, RuntimeError, ValueError) as error:
        page.complain("its stacks cannot be read if it hangs", error)
    else:
        page.arm_evidence(spec.evidence_signal)
