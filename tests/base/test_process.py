from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.base import process

DEADLINE_S = 20.0


@pytest.fixture
def sleeper():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.stdin.close()
    child.wait(DEADLINE_S)


@given(st.binary(max_size=16), st.integers(0, 2**22), st.integers(0, 2**60))
def test_stat_of_any_command(comm, ppid, start):
    tail = b" ".join(b"%d" % n for n in [ppid, *range(17), start, *range(30)])
    stat = process.parse_stat(b"42 (" + comm + b") S " + tail + b"\n")
    assert (stat.pid, stat.state, stat.ppid, stat.start_time) == (42, "S", ppid, start)
    assert os.fsencode(stat.comm) == comm


def test_stat_of_a_command_that_looks_like_a_stat_line():
    tail = b"7 " + b"0 " * 17 + b"99"
    stat = process.parse_stat(b"1 (a) R 1 (b) S " + tail)
    assert (stat.comm, stat.state, stat.ppid, stat.start_time) == ("a) R 1 (b", "S", 7, 99)


def test_own_stat():
    stat = process.read_stat(os.getpid())
    assert stat is not None
    assert (stat.pid, stat.ppid, stat.state) == (os.getpid(), os.getppid(), "R")
    assert process.start_time(os.getpid()) == stat.start_time
    assert not stat.exiting
    assert not process.is_exiting(os.getpid())
    assert process.is_exiting(2**22 + 1)  # beyond the largest pid there is


def test_no_such_process():
    child = subprocess.Popen(["/bin/true"])
    child.wait(DEADLINE_S)
    assert process.read_stat(child.pid) is None
    assert process.start_time(child.pid) is None
    assert process.state(child.pid) == ""
    assert process.open_pidfd(child.pid) is None


def test_state_of_a_stopped_process(sleeper):
    os.kill(sleeper.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    assert process.state(sleeper.pid) == "T"


def test_pidfd_tells_the_end_and_takes_signals(sleeper):
    fd = process.open_pidfd(sleeper.pid)
    assert fd is not None
    try:
        assert not process.wait_pidfd(fd, 0.0)
        assert process.signal_pidfd(fd, signal.SIGKILL)
        assert process.wait_pidfd(fd, DEADLINE_S)
        sleeper.wait(DEADLINE_S)
        assert not process.signal_pidfd(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def test_pidfds_without_pythons_wrappers(sleeper, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)
    test_pidfd_tells_the_end_and_takes_signals(sleeper)


def test_thread_count_of_another_process(sleeper):
    assert process.thread_count(sleeper.pid) == 1


TREE = """
import os, subprocess, sys
from undaunted.base import process
process.become_subreaper()
code = "import os, sys; os.setsid(); sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"
leaf = [sys.executable, "-S", "-c", code]
middle = (
    "import subprocess, sys, os;"
    "p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE);"
    "p.stdout.read(2);"
    "sys.stdout.write(f'{p.pid}'); sys.stdout.flush(); os._exit(0)"
)
p = subprocess.run([sys.executable, "-S", "-c", middle, *leaf], stdout=subprocess.PIPE, timeout=20)
orphan = int(p.stdout)
assert process.read_stat(orphan).ppid == os.getpid(), "the orphan was not adopted"
assert process.descendants(os.getpid()) == [orphan]
os.kill(orphan, 9)
os.waitpid(orphan, 0)
assert process.descendants(os.getpid()) == []
"""


def run_python(code: str, timeout: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_a_subreaper_finds_an_orphan_in_another_session():
    done = run_python(TREE)
    assert (done.returncode, done.stderr) == (0, "")


STRANGER = """
import os, subprocess, sys
from undaunted.base import process
process.become_subreaper()
nested = "import subprocess; subprocess.run(['sleep', '60'])"
stranger = subprocess.Popen([sys.executable, "-c", nested])
while len(process.descendants(os.getpid())) < 2:
    pass
spared = {(stranger.pid, process.start_time(stranger.pid))}
ours = subprocess.Popen(["sleep", "60"])
assert process.descendants(os.getpid(), spared) == [ours.pid]
assert process.end_descendants(10.0, spared) == {ours.pid: "sleep"}
assert stranger.poll() is None
assert len(process.end_descendants(10.0)) == 2
"""


def test_what_was_there_before_is_spared():
    done = run_python(STRANGER)
    assert (done.returncode, done.stderr) == (0, "")


def test_die_with_parent():
    code = """
import os
from undaunted.base import process
r, w = os.pipe()
parent = os.fork()
if parent == 0:
    me = os.getpid()
    if os.fork() == 0:
        os.close(r)
        assert process.die_with_parent(me)
        os.write(w, b"%d" % os.getpid())
        process.wait_readable(os.pipe()[0], 20)
        os._exit(0)
    process.wait_readable(os.pipe()[0], 20)
process.become_subreaper()
child = int(os.read(r, 20))
os.kill(parent, 9)
status = [os.waitpid(pid, 0)[1] for pid in (parent, child)]
assert status == [9, 9], status
assert not process.die_with_parent(parent), "that one is not our parent"
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(params=["as built now", "as built for an old C library"])
def spawn_of_python(request, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise NotImplementedError("setsid unavailable on this platform")

    if request.param != "as built now":
        monkeypatch.setattr(os, "posix_spawnp", refuse)


@pytest.mark.usefixtures("spawn_of_python")
def test_spawn_passes_descriptors_and_resets_signals(tmp_path):
    out = tmp_path / "out"
    r, w = os.pipe()
    fd = os.open(out, os.O_WRONLY | os.O_CREAT, 0o600)
    code = (
        "import os, signal;"
        f"os.write({fd}, repr((os.environ['A'], os.getsid(0) == os.getpid(),"
        " signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(),"
        " sorted(int(f) for f in os.listdir('/proc/self/fd'))[3:])).encode())"
    )
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        pid = process.spawn([sys.executable, "-S", "-c", code], {"A": "b"}, (fd, r), blocked=())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    assert os.waitpid(pid, 0)[1] == 0
    for each in (r, w, fd):
        os.close(each)
    text = out.read_text()
    assert text.startswith("('b', True, True, [")
    assert str(w) not in text.partition("[")[2].replace("]", "").replace(")", "").split(", ")


@pytest.mark.usefixtures("spawn_of_python")
def test_spawn_resets_signals_that_are_ignored_here(tmp_path):
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT)
    code = f"import signal; assert not any(signal.getsignal(n) for n in {[*map(int, numbers)]})"
    old = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        pid = process.spawn([sys.executable, "-S", "-c", code], {}, ())
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.usefixtures("spawn_of_python")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU]
)
def test_a_spawned_program_survives_a_signal_to_all_processes(number):
    code = f"import os; os.kill(os.getpid(), {int(number)})"
    pid = process.spawn([sys.executable, "-S", "-c", code], {}, ())
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.usefixtures("spawn_of_python")
def test_spawn_of_what_is_not_there():
    with pytest.raises(FileNotFoundError, match="/no/such/python"):
        process.spawn(["/no/such/python"], {}, ())


def test_own_children_are_found_quickly(sleeper):
    assert sleeper.pid in process.children()


def test_wait_for_the_first_of_several():
    read, write = os.pipe()
    quiet, other = os.pipe()
    try:
        os.write(write, b"x")
        assert process.wait_for_any([quiet, -1, read]) == [read]
    finally:
        for fd in (read, write, quiet, other):
            os.close(fd)


@pytest.mark.parametrize(
    ("number", "limit", "said"),
    [
        (errno.EMFILE, 30, "no more (ulimit -n is 30: raise it)"),
        (errno.EFBIG, 1024, "no more (ulimit -f is 1024 bytes: raise it)"),
        (errno.EFBIG, resource.RLIM_INFINITY, "no more"),  # of the file system
        (errno.EACCES, 30, "no more"),
    ],
)
def test_the_limit_that_was_reached_is_named(
    monkeypatch: pytest.MonkeyPatch, number: int, limit: int, said: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert process.refusal(OSError(number, "no more")) == said


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no autogroups here")
def test_priority_of_a_session():
    code = (
        "from undaunted.base import process as p; before = p.nice_of_session(); "
        "p.renice_session(7); now = p.nice_of_session(); p.renice_session(before); "
        "print(before, now, p.nice_of_session())"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "0 7 0\n"


def test_priority_of_a_session_where_there_are_none(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "_AUTOGROUP", tmp_path / "absent" / "autogroup")
    process.renice_session(7)
    assert process.nice_of_session() == 0
