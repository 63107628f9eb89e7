"""How a run ends: signals, dead front, dead agent, control requests, hostile surroundings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import (
    DEADLINE_S,
    Launcher,
    alive,
    explained,
    launched,
    wait_until_gone,
)
from tests.ports import free_ports
from undaunted.base import process

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

# Each rank starts an ordinary child and one that leaves session and process group.
FAMILY = """
    import os, subprocess, sys, threading
    sleep = [sys.executable, "-c", "import threading; threading.Event().wait(600)"]
    child = subprocess.Popen(sleep)
    daemon = subprocess.Popen(
        [sys.executable, "-c",
         "import os, subprocess, sys; "
         "p = subprocess.Popen(sys.argv[1:], start_new_session=True); print(p.pid, flush=True)",
         *sleep],
        stdout=subprocess.PIPE, text=True)
    pid = int(daemon.stdout.readline())
    daemon.wait()
    print("family", os.getpid(), child.pid, pid, flush=True)
    threading.Event().wait(600)
"""


def interrupt_again(launcher: Launcher) -> None:
    """A second Ctrl-C: one within a second of the first counts as the same."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        launcher.process.wait(1.5)
    launcher.process.send_signal(signal.SIGINT)


def family_of(launcher: Launcher, ranks: int) -> list[int]:
    lines = [launcher.wait_for_next(r"family ([\d ]+)") for _ in range(ranks)]
    return [int(pid) for found in lines for pid in found[1].split()]


@pytest.mark.parametrize("victim", ["front", "agent"])
@pytest.mark.parametrize("mode", ["warm", "fresh"])
def test_nobody_survives_the_death_of_the_launcher(tmp_path: Path, victim: str, mode: str) -> None:
    options = ("--nproc-per-node", "2", "--worker-start", mode)
    with launched(tmp_path, FAMILY, *options, TMPDIR=str(tmp_path)) as launcher:
        pids = family_of(launcher, ranks=2)
        agent = launcher.agent_pid
        os.kill(launcher.process.pid if victim == "front" else agent, signal.SIGKILL)
        assert wait_until_gone([*pids, agent], timeout_s=DEADLINE_S) == []
        code = launcher.process.wait(DEADLINE_S)
        assert code == (-signal.SIGKILL if victim == "front" else 1)
        if victim == "agent":
            launcher.wait_for(r"agent .*was killed by SIGKILL")
        assert list(tmp_path.glob("undaunted-errors-*")) == []


def test_the_journal_of_a_killed_launcher_tells_what_its_ranks_did_last(tmp_path: Path) -> None:
    script = """
        import os, threading, undaunted
        for iteration in range(8):
            undaunted.step(iteration)
        undaunted.event("mine", "the last one")
        print("there", flush=True)
        threading.Event().wait(600)
    """
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        launcher.wait_for("there")
        agent = launcher.agent_pid
        os.kill(launcher.process.pid, signal.SIGKILL)
        assert wait_until_gone([agent], timeout_s=DEADLINE_S) == []
        assert [event["text"] for event in launcher.events("rank_event")] == ["the last one"]
        assert launcher.events("round_progress")[-1]["last_iteration"] == 7


def test_a_finished_job_leaves_nobody_behind(tmp_path: Path) -> None:
    script = FAMILY.rsplit("    threading", 1)[0]
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        pids = family_of(launcher, ranks=1)
        assert launcher.finish() == 0
        assert [pid for pid in pids if alive(pid)] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_is_passed_on_and_the_job_counts_as_preempted(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = """
        import signal, sys, threading
        def told(number, frame):
            sys.stdout.write(f"told {signal.Signals(number).name}\\n")
            sys.exit(5)
        for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(s, told)
        print("ready", flush=True)
        threading.Event().wait(600)
    """
    with launched(tmp_path, script, "--nproc-per-node", "1", "--max-restarts", "3") as launcher:
        launcher.wait_for("ready")
        launcher.process.send_signal(number)
        assert launcher.finish() == 75, launcher.text
        launcher.wait_for(f"told {number.name}")


def test_other_signals_are_passed_on_if_they_are_asked_for(tmp_path: Path) -> None:
    script = """
        import signal, sys, threading
        def told(number, frame):
            sys.stdout.write(f"told {signal.Signals(number).name}\\n")
            sys.exit(3)
        signal.signal(signal.SIGUSR1, told)
        print("up", flush=True)
        threading.Event().wait(60)
    """
    for start in ("warm", "fresh"):
        options = ("--signals-to-handle=SIGUSR1,term", "--worker-start", start)
        with launched(tmp_path, script, *options) as launcher:
            launcher.wait_for("^up")
            launcher.process.send_signal(signal.SIGUSR1)
            assert launcher.finish() == 75
            assert "told SIGUSR1" in launcher.text
            assert "received SIGUSR1: passed on to the ranks" in launcher.text


@pytest.mark.parametrize(
    ("number", "delay_s"), [(signal.SIGINT, 0.0), (signal.SIGTERM, 0.3), (signal.SIGINT, 1.0)]
)
def test_a_signal_before_there_are_ranks_is_not_lost(
    tmp_path: Path, number: signal.Signals, delay_s: float
) -> None:
    """The moments between the launcher's first line and the first line of the ranks."""
    script = "import threading; threading.Event().wait(600)"
    with launched(tmp_path, script, "--nproc-per-node", "2", "--max-restarts", "3") as launcher:
        launcher.wait_for("2 ranks of")
        threading.Event().wait(delay_s)
        launcher.process.send_signal(number)
        assert launcher.finish() == 75, launcher.text


def test_a_signal_during_a_restart_is_not_lost(tmp_path: Path) -> None:
    script = """
        import os, signal, threading
        front = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[1])
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(front, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait(600)
    """
    with launched(tmp_path, script, "--nproc-per-node", "2", "--max-restarts", "3") as launcher:
        assert launcher.finish() == 75, launcher.text


def test_two_launchers_with_one_run_directory(tmp_path: Path) -> None:
    script = "import threading; print('ready', flush=True); threading.Event().wait(600)"
    with launched(tmp_path, script, "--nproc-per-node", "1") as first:
        first.wait_for("ready")
        second = Launcher(["--run-dir", "run", "train.py"], tmp_path)
        try:
            assert second.finish() == 2
            second.wait_for("in use by another launcher")
        finally:
            second.close()
        first.process.send_signal(signal.SIGTERM)
        assert first.finish() == 75, first.text


OUTLIVES = """
    import ctypes, os, pathlib, signal, threading
    ctypes.CDLL(None).prctl(1, 0)  # it does not die with its parent
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, f"rank {os.getpid()} works\\n".encode())
    for number in (1, 2):  # the end of the launcher's output is waited for
        os.dup2(os.open("/dev/null", os.O_WRONLY), number)
    while not pathlib.Path("finish").exists():
        threading.Event().wait(0.02)
"""


@pytest.mark.parametrize("start", ["warm", "fresh"])
def test_a_job_does_not_start_beside_a_rank_of_its_earlier_start(
    tmp_path: Path, start: str
) -> None:
    options = ("--rdzv-id", "job", "--node-name", "here", "--worker-start", start)
    with contextlib.ExitStack() as left:
        with launched(tmp_path, OUTLIVES, *options) as first:
            rank = int(first.wait_for(r"rank (\d+) works")[1])
            left.callback(os.kill, rank, signal.SIGKILL)
            both = (first.process.pid, first.agent_pid)
            for number in (signal.SIGSTOP, signal.SIGKILL):  # neither sees the end of the other
                for pid in both:
                    os.kill(pid, number)
            first.finish()
        assert alive(rank)
        with launched(tmp_path, OUTLIVES, *options) as second:
            assert second.finish() == 2
        assert f"kill -KILL {rank}" in second.text
        assert "node here" in second.text
    wait_until_gone([rank], DEADLINE_S)
    with launched(tmp_path, OUTLIVES, *options) as third:
        third.wait_for(r"rank \d+ works")
        (tmp_path / "finish").touch()
        assert third.finish() == 0


def test_a_launcher_that_was_stopped_is_named_where_it_is_in_the_way(tmp_path: Path) -> None:
    script = "import threading; print('ready', flush=True); threading.Event().wait(600)"
    with launched(tmp_path, script, "--nproc-per-node", "1") as first:
        first.wait_for("ready")
        first.process.send_signal(signal.SIGSTOP)
        second = Launcher(["--run-dir", "run", "train.py"], tmp_path)
        try:
            assert second.finish() == 2
            second.wait_for(rf"pid {first.process.pid}, which is stopped: kill -CONT")
        finally:
            second.close()
            first.process.send_signal(signal.SIGCONT)
        first.process.send_signal(signal.SIGTERM)
        assert first.finish() == 75, first.text


def test_too_few_descriptors(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    command = (
        f"ulimit -n 20; {sys.executable} -m undaunted.cli.main run --nproc-per-node 4 train.py"
    )
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr


def test_under_nohup_a_hangup_does_nothing(tmp_path: Path) -> None:
    script = """
        import sys
        sys.stdout.write("ready\\n")
        sys.stdin.readline()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    command = f'trap "" HUP; exec {sys.executable} -m undaunted.cli.main run --run-dir run train.py'
    with subprocess.Popen(
        ["sh", "-c", command],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        launcher.send_signal(signal.SIGHUP)
        launcher.communicate("go on\n", timeout=DEADLINE_S)
        assert launcher.returncode == 0


def test_an_interrupt_that_was_ignored_from_the_start_does_nothing(tmp_path: Path) -> None:
    """As a script's `undaunted run ... &`: the shell has it ignore Ctrl-C."""
    (tmp_path / "train.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)")
    command = f'trap "" INT; exec {sys.executable} -m undaunted.cli.main run --run-dir run train.py'
    with subprocess.Popen(
        ["sh", "-c", command],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        while launcher.stdout.readline() != "ready\n":
            assert launcher.poll() is None
        for pid in (launcher.pid, *process.descendants(launcher.pid)[:1]):
            os.kill(pid, signal.SIGINT)
        launcher.terminate()
        text, _ = launcher.communicate(timeout=DEADLINE_S)
        assert launcher.returncode == 75
    assert "received SIGTERM" in text
    assert "SIGINT" not in text
    assert "Ctrl-C" not in text


def test_interrupts_while_the_launcher_ends_leave_its_exit_code(tmp_path: Path) -> None:
    script = """
        import signal, sys, threading
        signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
        print("ready", flush=True)
        threading.Event().wait(600)
    """
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        launcher.wait_for("ready")
        until = time.monotonic() + DEADLINE_S
        while launcher.process.poll() is None and time.monotonic() < until:
            launcher.process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        assert launcher.finish() == 75, launcher.text
    assert "Traceback" not in launcher.text
    assert "before any rank" not in launcher.text


def test_ranks_that_end_well_after_a_signal_have_finished(tmp_path: Path) -> None:
    script = """
        import signal, sys, threading
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("ready", flush=True)
        threading.Event().wait(600)
    """
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        launcher.wait_for("ready")
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 0, launcher.text


def test_the_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    script = """
        import signal, threading
        signal.signal(signal.SIGINT, lambda *_: print("ignored", flush=True))
        print("ready", flush=True)
        while True:
            threading.Event().wait(600)
    """
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        launcher.wait_for("ready")
        launcher.process.send_signal(signal.SIGINT)
        launcher.wait_for("ignored")
        interrupt_again(launcher)
        assert launcher.finish() == 75, launcher.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_is_one(tmp_path: Path, number: signal.Signals) -> None:
    """As from a terminal and from a wrapper that passes it on: the ranks save meanwhile."""
    script = """
        import signal, sys, threading
        def told(number, frame):
            print("told", flush=True)
            threading.Event().wait(2)
            print("saved", flush=True)
            sys.exit(1)
        signal.signal(signal.SIGINT, told)
        signal.signal(signal.SIGTERM, told)
        print("ready", flush=True)
        threading.Event().wait(600)
    """
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        launcher.wait_for("ready")
        launcher.process.send_signal(number)
        threading.Event().wait(0.2)  # the wrapper's
        launcher.process.send_signal(number)
        assert launcher.finish() == 75, launcher.text
        assert launcher.text.count("told") == launcher.text.count("saved") == 1


@pytest.mark.parametrize("everywhere", [False, True])
def test_ranks_that_save_at_a_signal_of_their_own_are_not_ended_by_the_first_that_has(
    tmp_path: Path, everywhere: bool
) -> None:
    script = """
        import os, signal, sys, time
        rank, asked = int(os.environ["RANK"]), []
        signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
        print(f"ready {os.getpid()}", flush=True)
        while not asked:
            time.sleep(0.01)
        time.sleep(4 * rank)  # a large file
        open(f"saved-{rank}", "w").close()
        sys.exit(1)
    """
    with launched(tmp_path, script, "--nproc-per-node", "2") as launcher:
        ranks = [int(launcher.wait_for_next(r"ready (\d+)")[1]) for _ in range(2)]
        others = [launcher.agent_pid, *ranks] if everywhere else []
        for pid in (launcher.process.pid, *others):
            os.kill(pid, signal.SIGUSR1)
        assert launcher.finish() == 1, launcher.text
        ends = {end["rank"]: end.get("exit_code") for end in launcher.events("rank_exited")}
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
    assert ends == {0: 1, 1: 1}


# What a rank does with SIGUSR1: "handles" saves and goes on, until it gets one that is named.
USER_SIGNAL = """
    import os, signal, sys, threading
    over = threading.Event()
    def hear(number, frame):
        name = signal.Signals(number).name
        sys.stdout.write(f"heard {name}\\n")
        if name in (sys.argv[2:] or [name]):
            over.set()
    if sys.argv[1] == "handles":
        for name in ("SIGUSR1", "SIGUSR2", "SIGXCPU"):
            signal.signal(getattr(signal, name), hear)
    sys.stdout.write(f"ready {os.getpid()}\\n")
    over.wait(600)
"""


@pytest.mark.parametrize(
    ("name", "mode"), [("SIGUSR1", "warm"), ("SIGUSR2", "fresh"), ("SIGXCPU", "warm")]
)
def test_a_signal_of_the_programs_is_passed_on_and_the_job_goes_on(
    tmp_path: Path, mode: str, name: str
) -> None:
    options = ("--nproc-per-node", "2", "--worker-start", mode)
    with launched(tmp_path, USER_SIGNAL, *options, args=("handles",)) as launcher:
        for _ in range(2):
            launcher.wait_for_next("ready")
        launcher.process.send_signal(getattr(signal, name))
        launcher.wait_for(f"received {name}: passed on to ranks 0-1")
        assert launcher.finish() == 0, launcher.text
        assert launcher.text.count(f"heard {name}") == 2
        (event,) = launcher.events("signal_passed_on")
        assert event["signal"] == name
        assert event["ranks"] == [0, 1]


def test_a_signal_of_the_programs_to_all_processes_ends_nothing(tmp_path: Path) -> None:
    """As Slurm's --signal=USR1@90 does: launcher, agent and template get it as well."""
    options = ("--nproc-per-node", "2", "--worker-start", "warm")
    with launched(tmp_path, USER_SIGNAL, *options, args=("handles", "SIGUSR2")) as launcher:
        ranks = [int(launcher.wait_for_next(r"ready (\d+)")[1]) for _ in range(2)]
        pid = launcher.process.pid
        for each in [pid, *process.descendants(pid)]:
            os.kill(each, signal.SIGUSR1)
        launcher.wait_for("received SIGUSR1: the ranks got it")
        for each in ranks:
            os.kill(each, signal.SIGUSR2)
        assert launcher.finish() == 0, launcher.text
        assert launcher.text.count("heard SIGUSR1") == 2


def test_a_signal_of_the_programs_is_not_passed_on_to_who_would_die_of_it(tmp_path: Path) -> None:
    with launched(tmp_path, USER_SIGNAL, "--nproc-per-node", "1", args=("",)) as launcher:
        pid = int(launcher.wait_for_next(r"ready (\d+)")[1])
        launcher.process.send_signal(signal.SIGUSR1)
        launcher.wait_for("received SIGUSR1: no rank has a handler")
        assert alive(pid)


def test_a_signal_that_ends_the_launcher_is_in_the_journal(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "1", "--signals-to-handle", "SIGTERM")
    with launched(tmp_path, USER_SIGNAL, *options, args=("",)) as launcher:
        pid = int(launcher.wait_for_next(r"ready (\d+)")[1])
        agent = launcher.agent_pid
        launcher.process.send_signal(signal.SIGHUP)
        assert launcher.finish() == -signal.SIGHUP
        assert wait_until_gone([pid, agent], timeout_s=DEADLINE_S) == []
        (event,) = launcher.events("signal_received")
        assert event["signal"] == "SIGHUP"


@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_does_not_wait_for_the_imports(tmp_path: Path, times: int) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import threading\nprint('importing', flush=True)\nthreading.Event().wait(600)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with launched(tmp_path, "", "--preload", "slow_to_import", PYTHONPATH=path) as launcher:
        launcher.wait_for("importing")
        launcher.process.send_signal(signal.SIGINT)
        if times == 2:
            interrupt_again(launcher)
        assert launcher.finish() == 75, launcher.text


def test_a_second_signal_is_not_said_to_be_passed_on(tmp_path: Path) -> None:
    script = """
        import signal, threading
        signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
        print("ready", flush=True)
        while True:
            threading.Event().wait(600)
    """
    options = ("--nproc-per-node", "1", "--term-timeout", "5", "--worker-start", "fresh")
    with launched(tmp_path, script, *options) as launcher:
        launcher.wait_for("ready")
        launcher.process.send_signal(signal.SIGTERM)
        launcher.wait_for("passed on to the ranks")
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.process.wait(1.5)  # one that comes within a second is the same
        launcher.process.send_signal(signal.SIGTERM)
        launcher.wait_for("received SIGTERM: the ranks are being stopped already")
        assert launcher.finish() == 75, launcher.text
        assert launcher.text.count("told") == 1


def test_the_end_of_a_rank_that_was_told_is_not_cut_short(tmp_path: Path) -> None:
    """It leaves with an exit code, and what it does on its way out takes its time."""
    script = """
        import atexit, signal, sys, threading
        def save():
            threading.Event().wait(1.5)
            print("saved", flush=True)
        atexit.register(save)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("ready", flush=True)
        threading.Event().wait(600)
    """
    options = ("--nproc-per-node", "1", "--worker-start", "fresh")
    with launched(tmp_path, script, *options) as launcher:
        launcher.wait_for("ready")
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75, launcher.text
        launcher.wait_for("saved")


def test_a_helper_that_was_there_before_is_left_alone(tmp_path: Path) -> None:
    """As in the entry point of a container: `helper & exec undaunted run ...`."""
    (tmp_path / "train.py").write_text("")
    run = "-m undaunted.cli.main run --run-dir run --worker-start fresh train.py"
    command = f"sleep 600 >/dev/null 2>&1 & echo $!; exec {sys.executable} {run}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    helper = int(done.stdout)
    try:
        assert alive(helper)
        assert done.returncode == 0, done.stderr
    finally:
        os.kill(helper, signal.SIGKILL)


# A module for the template, and so a process of the launcher's own: `PR_SET_PTRACER` lets the test
# hold up its end, as a busy machine does where the priority is low.
OWN_CHILD = """
import ctypes, os, pathlib, signal
if os.fork() == 0:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
    pathlib.Path("pid.new").write_text(f"{os.getpid()}")
    os.replace("pid.new", "pid")
    while True:
        signal.pause()
"""
# With PTRACE_O_TRACEEXIT (64) the killed process waits for this one before it ends.
TRACER = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
PTRACE_SEIZE = 0x4206
done = libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, 64) == 0
print("holds" if done else f"cannot: error {ctypes.get_errno()}", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held_at_its_end(pid: int) -> Iterator[None]:
    """Have a process that is killed take until the end of the block to end."""
    tracer = subprocess.Popen(
        [sys.executable, "-c", TRACER, str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert tracer.stdout is not None
    try:
        said = tracer.stdout.readline().strip()
        if said != "holds":
            pytest.skip(f"this machine lets no process trace another one ({said})")
        yield
    finally:
        tracer.communicate()


@pytest.mark.parametrize("how", ["finished", "stopped"])
def test_a_slow_end_of_a_process_of_the_launchers_own_is_nobodys_business(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "ours.py").write_text(OWN_CHILD)
    script = """
        import os, signal, sys, threading
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("up", flush=True)
        while not os.path.exists("go"):
            threading.Event().wait(0.05)
    """
    options = ("--nproc-per-node", "1", "--worker-start", "warm", "--preload", "ours")
    with launched(tmp_path, script, *options, PYTHONPATH=with_path(tmp_path)) as launcher:
        launcher.wait_for("^up")
        pid = int((tmp_path / "pid").read_text())
        with held_at_its_end(pid):
            if how == "finished":
                (tmp_path / "go").touch()
            else:
                launcher.process.send_signal(signal.SIGTERM)
            assert launcher.finish() in (0, 75), launcher.text
            assert alive(pid), "its end is held up"
        assert wait_until_gone([pid], timeout_s=DEADLINE_S) == [], "though it was killed"
    assert "SIGKILL" not in launcher.text
    assert "outlived" not in launcher.text


def with_path(directory: Path) -> str:
    return os.pathsep.join([str(directory), *filter(None, sys.path)])


def test_a_process_of_the_users_that_outlives_the_job_is_named(tmp_path: Path) -> None:
    """A script starts a helper and becomes the launcher; what that helper leaves is ended."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import os, pathlib, threading
            pathlib.Path("go").touch()
            def left():
                try:
                    pid = int(pathlib.Path("pid").read_text())
                    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
                except (OSError, ValueError):
                    return False
                return int(stat.split()[1]) == os.getppid() or stat.split()[1] == os.environ["TOP"]
            while not left():
                threading.Event().wait(0.05)
        """)
    )
    run = "-m undaunted.cli.main run --run-dir run --worker-start fresh train.py"
    helper = "until [ -e go ]; do sleep 0.05; done; sleep 600 >/dev/null 2>&1 & echo $! > pid"
    command = f"export TOP=$$; ({helper}) & exec {sys.executable} {run}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S
    )
    pid = int((tmp_path / "pid").read_text())
    try:
        assert done.returncode == 0, done.stderr
        assert f"1 process that outlived the job got SIGKILL: sleep (pid {pid})" in done.stderr
        assert not alive(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ("--nproc-per-node", "1", "--max-restarts", "1", "--master-port", port)
        with launched(tmp_path, "", *options, "--worker-start", "fresh") as launcher:
            assert launcher.finish() == 1
            launcher.wait_for(rf"port {port} .*in use.*--master-port")
            launcher.wait_for("failed.*: .*no restart is left of 1")
            assert "Traceback" not in launcher.text


@pytest.mark.parametrize(
    ("action", "code", "outcome"),
    [("ShutdownWorkload", 93, "no_restart"), ("ExcludeThisNode", 1, "excluded")],
)
def test_workload_control(tmp_path: Path, action: str, code: int, outcome: str) -> None:
    script = f"""
        import threading
        from undaunted.fault_tolerance import (
            RankMonitorClient, WorkloadAction, WorkloadControlRequest)
        client = RankMonitorClient()
        client.init_workload_monitoring()
        client.send_workload_control_request(
            WorkloadControlRequest(action=WorkloadAction.Continue, description="as you were"))
        client.send_workload_control_request(
            WorkloadControlRequest(action=WorkloadAction.{action}, description="loss is good"))
        threading.Event().wait(600)
    """
    with launched(tmp_path, script, "--nproc-per-node", "2", "--max-restarts", "3") as launcher:
        assert launcher.finish() == code, launcher.text
        (ended,) = launcher.events("job_ended")
        assert ended["outcome"] == outcome
        assert "loss is good" in ended["reason"]


def test_script_not_found(tmp_path: Path) -> None:
    launcher = Launcher(["--nproc-per-node", "2", "tarin.py"], tmp_path)
    try:
        (tmp_path / "train.py").write_text("")
        assert launcher.finish() == 2
        launcher.wait_for(r"tarin\.py")
    finally:
        launcher.close()


def test_a_run_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "train.py").write_text("")
    launcher = Launcher(["--run-dir", "file/run", "train.py"], tmp_path)
    try:
        assert launcher.finish() == 2
        launcher.wait_for(r"--run-dir")
    finally:
        launcher.close()


def test_a_run_directory_that_vanishes_disturbs_nobody(tmp_path: Path) -> None:
    script = """
        import os, sys, threading
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            print("ready", flush=True)
            while os.path.exists("run"):
                threading.Event().wait(0.01)
            sys.exit(1)
    """
    with launched(tmp_path, script, "--nproc-per-node", "1", "--max-restarts", "1") as launcher:
        launcher.wait_for("ready")
        shutil.rmtree(launcher.run_dir)
        assert launcher.finish() == 0, launcher.text


def unshared(command: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell line with a mount namespace of its own (root only)."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare(1) to mount a small file system")
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip(f"no mount namespaces here: {probe.stderr.decode().strip()}")
    return subprocess.run(
        ["unshare", "-m", "sh", "-ec", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


CRASH_ONCE = """
import os, sys, undaunted
for i in range(10):
    undaunted.step(i)
sys.exit(int(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"))
"""
RUN = f"{sys.executable} -m undaunted.cli.main run --nproc-per-node 2 --max-restarts 1"


def test_a_tiny_dev_shm(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CRASH_ONCE)
    line = f"mount -t tmpfs -o size=64k none /dev/shm; exec {RUN} --run-dir run train.py"
    done = unshared(line, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_directory_that_is_full_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CRASH_ONCE)
    (tmp_path / "small").mkdir()
    line = (
        "mount -t tmpfs -o size=64k none small; mkdir -m 700 small/run; "
        f"head -c 65536 /dev/zero > small/fill || true; exec {RUN} --run-dir small/run train.py"
    )
    done = unshared(line, tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "No space left" in done.stderr
    assert "--run-dir" in done.stderr


def test_a_disk_that_fills_up_while_the_job_runs(tmp_path: Path) -> None:
    """The job goes on, restarts and ends; that the journal suffers is said once."""
    fill = "import contextlib\nwith contextlib.suppress(OSError):\n"
    fill += "    open('small/fill', 'ab', buffering=0).write(bytes(1 << 20))\n"
    (tmp_path / "train.py").write_text(fill + CRASH_ONCE)
    (tmp_path / "small").mkdir()
    line = f"mount -t tmpfs -o size=64k none small; exec {RUN} --run-dir small/run train.py"
    done = unshared(line, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("No space left") == 1, done.stderr


def test_a_full_disk_of_checkpoints_is_named(tmp_path: Path) -> None:
    fill = "import os\nfile = open(f'small/{os.getpid()}.pt', 'wb', buffering=0)\n"
    fill += "while file.write(bytes(1 << 12)): pass\n"
    (tmp_path / "train.py").write_text(fill)
    (tmp_path / "small").mkdir()
    line = f"mount -t tmpfs -o size=1m none small; exec {RUN} --max-restarts 0 train.py"
    done = unshared(line, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"no room is left on {tmp_path}/small (0 of 1 MiB free)" in done.stderr


def test_a_read_only_run_directory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CRASH_ONCE)
    (tmp_path / "small").mkdir()
    line = (
        "mount -t tmpfs -o size=1m none small; mkdir -m 700 small/run; "
        f"mount -o remount,ro small; exec {RUN} --run-dir small/run train.py"
    )
    done = unshared(line, tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "--run-dir" in done.stderr


def test_a_stalled_reader_of_our_output(tmp_path: Path) -> None:
    """The launcher's stderr is a full pipe: hangs are found and the job ends all the same."""
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        try:
            while True:
                os.write(write, b"x" * 65536)
        except BlockingIOError:
            pass
        os.set_blocking(write, True)
        (tmp_path / "train.py").write_text(CRASH_ONCE)
        done = subprocess.run(
            [*RUN.split(), "--run-dir", "run", "-r", "3", "train.py"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("both", [False, True])
def test_a_reader_of_our_output_that_goes_costs_no_restart(tmp_path: Path, both: bool) -> None:
    """As with `| head` or an SSH that is closed: ranks fail in their next print."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import os, threading
            print("begun", flush=True)
            for i in range(1000):
                print("line", i, flush=True)
                if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" and i > 10:
                    break
                threading.Event().wait(0.05)
        """)
    )
    with (tmp_path / "stderr").open("w") as stderr:
        launcher = subprocess.Popen(
            [*RUN.split(), "--run-dir", "run", "--max-restarts", "1", "train.py"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if both else stderr,
        )
        assert launcher.stdout is not None
        while b"begun" not in launcher.stdout.readline():
            assert launcher.poll() is None
        launcher.stdout.close()
        assert launcher.wait(DEADLINE_S) == 0
    (journal,) = (tmp_path / "run").glob("journal-*.jsonl")
    (decision,) = [
        event
        for event in map(json.loads, journal.read_text().splitlines())
        if event["event"] == "decision" and event["action"] == "restart"
    ]
    assert "whose standard output" in decision["reason"]
    assert "nobody reads" in decision["reason"]
    assert decision["restarts_left"] == 1
    files = list((tmp_path / "run").glob("logs/attempt_1/*/stdout.log"))
    assert files
    assert all("line 10\n" in file.read_text() for file in files)
    if not both:
        said = (tmp_path / "stderr").read_text()
        assert said.count("nobody reads standard output of the launcher any more") == 1
        assert re.search(r"restart to write to files: \d+ ranks? running again", said)
        assert "finished, 1 restart to write to files" in said
        assert "on request" not in said
    why = explained(tmp_path / "run")
    assert (why["cause"], why["ranks"], why["action"]) == ("output_unread", [], "restart")


# Writes a second after its rank's end, as loggers do that upload what they have; in a session of
# its own. With "stubborn" it never ends.
LOGGER = """
    import os, signal, subprocess, sys, threading
    logger = '''
    import os, signal, sys, time
    if sys.argv[2] == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up", flush=True)
    sys.stdin.read()
    time.sleep(1)
    open(sys.argv[1], "w").close()
    while sys.argv[2] == "stubborn":
        signal.pause()
    '''
    number, kind = os.environ["TORCHELASTIC_RESTART_COUNT"], sys.argv[2]
    command = [sys.executable, "-c", logger, f"written-{number}", kind]
    helper = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    helper.stdout.readline()
    print("logger", helper.pid, flush=True)
    if number == "0":
        if sys.argv[1] == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] in ("hang", "wait"):
            import undaunted
            undaunted.heartbeat()
            while True:
                threading.Event().wait(600)
"""


@pytest.mark.parametrize("end", ["success", "crash", "hang", "wait"])
def test_a_helper_in_a_session_of_its_own_may_work_on_after_its_rank(
    tmp_path: Path, end: str
) -> None:
    options = ("--nproc-per-node", "1", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "2")
    limits = options if end == "hang" else options[:4]
    with launched(tmp_path, LOGGER, *limits, args=(end, "ends")) as launcher:
        pid = int(launcher.wait_for_next(r"logger (\d+)")[1])
        if end == "wait":
            launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == (75 if end == "wait" else 0), launcher.text
        rounds = 2 if end in ("crash", "hang") else 1
        assert sorted(path.name for path in tmp_path.glob("written-*")) == [
            f"written-{number}" for number in range(rounds)
        ]
        assert not alive(pid)


@pytest.mark.parametrize("session", [False, True])
def test_a_rank_with_a_helper_may_raise_when_its_peer_is_gone(
    tmp_path: Path, session: bool
) -> None:
    """As wandb: it writes the end of its file only if its rank says so as the interpreter ends."""
    script = """
        import atexit, contextlib, os, signal, socket, subprocess, sys, time
        from undaunted.training import Session
        logger = '''
        import sys
        print("up", flush=True)
        if sys.stdin.read() == "end":
            open("written", "w").close()
        '''
        def finish():
            time.sleep(0.7)  # it has much to write
            helper.communicate("end")
        with Session() if sys.argv[1] == "True" else contextlib.nullcontext():
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
                sys.exit()
            with socket.socket(socket.AF_UNIX) as peer:
                if os.environ["RANK"] == "1":
                    while peer.connect_ex("socket"):
                        time.sleep(0.01)
                    peer.recv(1)
                    if os.fork() == 0:
                        time.sleep(600)  # a loader's worker, which holds the connection as well
                    os.kill(os.getpid(), signal.SIGKILL)
                helper = subprocess.Popen([sys.executable, "-c", logger], text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
                helper.stdout.readline()
                atexit.register(finish)
                peer.bind("socket")
                peer.listen()
                with peer.accept()[0] as other:
                    other.send(b"x")
                    other.recv(1)
                    time.sleep(0.2)  # the rest of its step
                    raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    """
    options = ("--nproc-per-node", "2", "--max-restarts", "1")
    with launched(tmp_path, script, *options, args=(str(session),)) as launcher:
        assert launcher.finish() == 0, launcher.text
        ends = {end["rank"]: end for end in launcher.events("rank_exited") if end["round"] == 0}
        (verdict,) = launcher.events("verdict")
    assert (tmp_path / "written").exists()
    assert (ends[0].get("signal"), ends[0]["exit_code"]) == (None, 1)
    assert verdict["rank"] == 1


def test_a_helper_that_does_not_end_is_ended_with_the_job(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "1", "--workers-stop-timeout", "1")
    with launched(tmp_path, LOGGER, *options, args=("success", "stubborn")) as launcher:
        pid = int(launcher.wait_for_next(r"logger (\d+)")[1])
        assert launcher.finish() == 0, launcher.text
        assert (tmp_path / "written-0").exists()
        assert not alive(pid)


def test_the_second_interrupt_ends_helpers_as_well(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "1", "--workers-stop-timeout", "600")
    with launched(tmp_path, LOGGER, *options, args=("wait", "stubborn")) as launcher:
        pid = int(launcher.wait_for_next(r"logger (\d+)")[1])
        launcher.process.send_signal(signal.SIGINT)
        interrupt_again(launcher)
        assert launcher.finish() == 75, launcher.text
        assert not alive(pid)


def test_a_helper_that_holds_a_port_does_not_outlive_its_round(tmp_path: Path) -> None:
    script = """
        import os, signal, socket, subprocess, sys
        listen = "import signal, socket, sys; s = socket.socket(); " \\
            "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); " \\
            "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); print('up'); signal.pause()"
        server = subprocess.Popen([sys.executable, "-uc", listen, sys.argv[1]],
            stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert server.stdout.readline() == "up\\n", "the port is in use"
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    options = ("--nproc-per-node", "1", "--max-restarts", "1")
    with launched(tmp_path, script, *options, args=(str(free_ports(1)),)) as launcher:
        assert launcher.finish() == 0, launcher.text


@pytest.mark.torch
@pytest.mark.parametrize("restarts", [0, 2])
def test_nothing_of_the_ranks_is_left_in_dev_shm(tmp_path: Path, restarts: int) -> None:
    """torch_shm_manager removes the memory of a process that has died, 2 s after it."""
    script = """
        import os, signal, sys, threading
        from multiprocessing.shared_memory import SharedMemory
        import torch, torch.distributed, torch.multiprocessing
        torch.multiprocessing.set_sharing_strategy("file_system")
        torch.distributed.init_process_group("gloo")
        kept = torch.ones(1 << 18).share_memory_()
        named = SharedMemory(create=True, size=1 << 20)
        sys.stdout.write(f"shares {os.getpid()} {named.name}\\n")
        torch.distributed.barrier()
        if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1]):
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait(600)
    """
    options = ("--nproc-per-node", "2", "--max-restarts", str(restarts))
    with launched(tmp_path, script, *options, args=(str(restarts),)) as launcher:
        assert launcher.finish() == 0, launcher.text
        shares = re.findall(r"shares (\d+) (\S+)", launcher.text)
        assert len(shares) == 2 * (restarts + 1)
        left = [path.name for path in Path("/dev/shm").iterdir()]
        ours = {f"torch_{pid}" for pid, _ in shares} | {name for _, name in shares}
        assert [name for name in left if "_".join(name.split("_")[:2]) in ours] == []
