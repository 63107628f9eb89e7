"""The page and the processes that share it: owners, children, those that die while they write."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys

import pytest

from undaunted.progress import layout, record
from undaunted.progress.reader import IDENTITY
from undaunted.progress.snapshot import Phase
from undaunted.progress.writer import CHUNK

ATTACH = """
import os, sys
from undaunted.progress.writer import PageWriter
writer = PageWriter.attach(os.environ["UNDAUNTED_PAGE"])
print(writer.attached, writer.reason, flush=True)
"""
STAY = ATTACH + "sys.stdin.read()\n"


def test_a_second_process_is_refused_and_does_not_disturb_the_first(area, child, run):
    """Spec 3.1 items 5 and 11: the owner is a pid with its start time, and it is asked nothing."""
    first = child(STAY)
    assert first.stdout.readline().startswith("True")
    owner = area.snapshot(0)
    assert owner.pid == first.pid
    second = run(ATTACH + "writer.heartbeat()\nwriter.step(99)\nwriter.initialize()")
    assert second == f"False the page belongs to process {first.pid}, which is alive\n"
    assert area.snapshot(0) == owner


def test_the_page_of_a_dead_process_is_taken_over(area, run):
    run(ATTACH + "writer.step(5)\nwriter.open_section('a')\nwriter.arm_evidence(40)")
    before = area.snapshot(0)
    assert run(ATTACH + "writer.event('second')") == "True \n"
    after = area.snapshot(0)
    assert after.pid not in (0, before.pid)
    assert after.phase is Phase.STARTING
    assert (after.iteration, dict(after.sections), after.evidence_signal) == (None, {}, 0)
    assert [event.name for event in area.drain_events(0)[0]] == ["second"]


def test_a_zombie_is_dead(area, child, run):
    first = child(ATTACH)
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    assert run(ATTACH) == "True \n"


def test_a_reused_pid_is_another_process(area, child, run):
    """Spec 3.1 item 11."""
    first = child(STAY)
    first.stdout.readline()
    identity = IDENTITY.pack(first.pid, area.snapshot(0).pid_start - 1)
    record.write(area._bytes[0], layout.IDENTITY, 1, identity)
    assert run(ATTACH) == "True \n"


def test_two_that_attach_at_once(area, child):
    """One gets the page, the other is told why not: nobody waits, nothing is torn."""
    go = ATTACH.replace("writer =", "sys.stdin.readline()\nwriter =") + "sys.stdin.read()\n"
    both = [child(go) for _ in range(2)]
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.stdout.readline() for process in both)
    assert said[0].startswith("False ")
    assert said[1] == "True \n"
    assert area.snapshot(0).pid in [process.pid for process in both]


FORKS = """
import os, sys, undaunted
from undaunted.progress import writer
undaunted.step(1)
with undaunted.section("outer"):
    pid = os.fork()
    if pid == 0:
        undaunted.step(77)
        undaunted.event("from the child")
        with undaunted.section("in the child"):
            undaunted.heartbeat()
        writer.current.record_error(ValueError())
        writer.current.shut_down()
        code = 0 if not writer.current.attached and "forked" in writer.current.reason else 1
        if os.fork() == 0:
            undaunted.step(78)
            os._exit(0 if writer.current_writer().attached is False else 1)
        code |= os.wait()[1]
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
undaunted.step(2)
"""


def test_a_forked_child_leaves_the_page_alone(area, run):
    assert run(FORKS) == "0\n"
    page = area.snapshot(0)
    assert (page.iteration, page.heartbeat_count, page.phase) == (2, 2, Phase.STEPPING)
    assert set(page.sections) == {"outer"}
    assert page.sections["outer"].count == 1
    assert page.error is None
    assert area.drain_events(0) == ([], 0)


TEMPLATE = """
import os, undaunted
value = os.environ.pop("UNDAUNTED_PAGE")
undaunted.heartbeat()
if os.fork() == 0:
    os.environ["UNDAUNTED_PAGE"] = value
    undaunted.step(5)
    os._exit(0)
os.wait()
"""


def test_a_rank_forked_by_a_template_that_had_no_page_attaches(area, run):
    run(TEMPLATE)
    assert area.snapshot(0).iteration == 5


SPAWNS = """
import multiprocessing, os, undaunted

def work():
    undaunted.step(77)

if __name__ == "__main__":
    undaunted.step(1)
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join(20)
    print(process.exitcode)
"""


def test_a_spawned_child_is_refused(area, environ, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SPAWNS)
    done = subprocess.run(
        [sys.executable, script],
        env=environ,
        pass_fds=area.fds(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
    assert area.snapshot(0).iteration == 1


def test_descriptors_closed_by_a_wrapper(area, child):
    """The pages are found through the agent; there are no kicks, and the page says so."""
    process = child(
        ATTACH + "writer.step(3)\nprint(writer.request(b'ask', 20).decode(), flush=True)",
        pass_fds=(),
    )
    assert process.stdout.readline() == "True \n"
    assert area.kickless(0)
    request = None
    while request is None and process.poll() is None:
        request = area.take_request(0)
    area.answer(0, request, b"yes")
    assert process.stdout.readline() == "yes\n"
    process.wait(20)
    assert area.snapshot(0).iteration == 3


def test_the_agent_is_gone(area, run):
    """Spec 3.1 item 4: no page and no agent left; the program runs on."""
    area.close()
    said = run(ATTACH + "writer.heartbeat()\nprint('runs on')", pass_fds=())
    assert said.startswith("False the launcher")
    assert said.endswith("runs on\n")


def test_exec_keeps_the_page_and_forgets_what_the_new_program_does_not_know(area, run):
    said = run(
        ATTACH
        + "writer.milestone('first_line')\nwriter.arm_evidence(40)\nwriter.open_section('a')\n"
        + f"os.execv(sys.executable, [sys.executable, '-c', {ATTACH + 'writer.step(1)'!r}])"
    )
    assert said == "True \nTrue \n"
    page = area.snapshot(0)
    assert page.first_line_ns < page.first_step_ns
    assert page.attached_ns < page.first_line_ns
    assert (page.evidence_signal, dict(page.sections)) == (0, {})


def test_crashes_before_the_first_heartbeat_poison_nothing(area, run):
    """Spec 3.1 item 1: a good round, then rounds that die early, then a good one again."""
    for dies_early in (False, True, True, False):
        area.reset(0)
        run(ATTACH if dies_early else ATTACH + "writer.initialize()\nwriter.heartbeat()")
        page = area.snapshot(0)
        assert page.phase is (Phase.STARTING if dies_early else Phase.INITIALIZED)
        assert page.problem == ""


WRITES = (
    ATTACH
    + """
for index in range(10**9):
    writer.step(index)
    with writer.section(f"s{index % 40}"):
        writer.event("event", "text" * (index % 40))
    if index % 3 == 0:
        writer.record_error(ValueError("x" * (index % 1000)))
    if index == 200:
        print("busy", flush=True)
"""
)


@pytest.mark.parametrize("seed", range(4))
def test_killed_while_it_writes(area, child, run, seed):
    """Whatever it was doing: the page is read, and whoever comes next gets it."""
    process = child(WRITES)
    assert process.stdout.readline() == "True \n"
    assert process.stdout.readline() == "busy\n"
    for _ in range(random.Random(seed).randrange(40)):
        page = area.snapshot(0)
        assert page.problem == ""
        assert page.error is None or set(page.error.message) <= {"x"}
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    page = area.snapshot(0)
    assert page.problem == ""
    assert page.iteration >= 200
    assert page.error is None or page.error.type == "ValueError"
    events, _ = area.drain_events(0)
    assert all(event.name == "event" for event in events)
    assert run(ATTACH) == "True \n"


NO_CALLS = (
    ATTACH
    + """
import undaunted

def mark(text):
    try:
        os.write(-1, text)
    except OSError:
        pass

def work(times):
    for index in range(times):
        undaunted.heartbeat()
        undaunted.step(index)
        undaunted.event("name", "text")
        with undaunted.section("a"):
            pass

work(2)
mark(b"begin")
work(2000)
mark(b"end")
"""
)
# The interpreter itself may ask for memory, and the signal of a timer may arrive.
ALLOWED = ("brk", "mmap", "munmap", "---")
CPU_TIME = "clock_gettime(CLOCK_THREAD_CPUTIME_ID"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not there")
def test_no_system_calls(area, environ, tmp_path):
    log = tmp_path / "strace"
    done = subprocess.run(
        ["strace", "-o", log, sys.executable, "-c", NO_CALLS],
        env=environ,
        pass_fds=area.fds(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr}")
    assert done.stdout == "True \n", done.stderr
    lines = log.read_text().splitlines()
    begin, end = (
        next(i for i, line in enumerate(lines) if mark in line) for mark in ('"begin"', '"end"')
    )
    calls = [line for line in lines[begin + 1 : end] if not line.startswith(ALLOWED)]
    assert [line for line in calls if not line.startswith(CPU_TIME)] == []
    assert len(calls) == 2000 // CHUNK
    assert area.snapshot(0).heartbeat_count == 2 * 2002
