"""What a worker gets besides the program: files, directories, evidence, its page, its parent."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from undaunted.base import process

from .harness import DEADLINE_S, ENVIRONMENT, SRC, AgentProcess

EVIDENCE = signal.SIGRTMIN + 7


@pytest.fixture(scope="module", params=["warm", "fresh"])
def agent(request):
    agent = AgentProcess(warm=request.param == "warm", modules=[])
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def fresh_agent():
    agent = AgentProcess(warm=False, modules=[])
    yield agent
    agent.close()


def run(agent, tmp_path, text="", **fields):
    script = tmp_path / "script.py"
    script.write_text(text)
    spec = {
        "target": str(script),
        "cwd": str(tmp_path),
        "stdout": str(tmp_path / "out"),
        "stderr": str(tmp_path / "err"),
    }
    answer = agent.run([{**spec, **fields}])
    texts = [
        path.read_text() if path.exists() else "" for path in (tmp_path / "out", tmp_path / "err")
    ]
    return answer["codes"][0], *texts


# --- output ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stream", "fd"), [("stdout", 1), ("stderr", 2)])
def test_lines_are_written_whole(agent, tmp_path, stream, fd):
    text = (
        f"import os, sys; print('a', 'b', file=sys.{stream}, end=''); "
        f"os.write({fd}, b'other\\n'); print(file=sys.{stream}); os.write({fd}, b'last\\n')"
    )
    code, *texts = run(agent, tmp_path, text)
    assert code == 0
    assert texts[fd - 1] == "other\na b\nlast\n"


def test_output_goes_to_new_private_files_and_is_appended(agent, tmp_path):
    where = tmp_path / "logs" / "0"
    for _ in range(2):
        code, _, _ = run(agent, tmp_path, "print('a')", stdout=str(where / "stdout.log"))
        assert code == 0
    assert (where / "stdout.log").read_text() == "a\na\n"
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (where.parent, where, where / "stdout.log")
    ]
    assert modes == [0o700, 0o700, 0o600]


def test_both_streams_into_one_file_keep_their_order(agent, tmp_path):
    text = "import sys\nfor i in range(3): print(i); print(i, file=sys.stderr)"
    code, out, _ = run(agent, tmp_path, text, stderr=str(tmp_path / "out"))
    assert (code, out) == (0, "0\n0\n1\n1\n2\n2\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_that_cannot_be_opened(agent, tmp_path, stream, capfd):
    """The other stream is not redirected either, so that the message gets through."""
    (tmp_path / "file").touch()
    code, out, err = run(agent, tmp_path, "print('ran')", **{stream: str(tmp_path / "file" / "x")})
    assert (code, out, err) == (1, "", "")


def test_output_does_not_follow_a_symbolic_link(agent, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "somewhere")
    code, out, err = run(agent, tmp_path, "print('ran')", stdout=str(tmp_path / "link"))
    assert (code, out, err) == (1, "", "")
    assert not (tmp_path / "somewhere").exists()


def test_output_that_cannot_be_opened_is_said_on_the_launchers_stderr(tmp_path):
    (tmp_path / "file").touch()
    message = in_own_agent(tmp_path, stdout=str(tmp_path / "file" / "x"))
    assert message == (
        f"undaunted: cannot write the output of a rank to '{tmp_path}/file/x': Not a directory; "
        "make room or correct its permissions, or choose another directory with --log-dir\n"
    )


def test_a_working_directory_that_is_gone(tmp_path):
    message = in_own_agent(tmp_path, cwd=str(tmp_path / "gone"))
    assert message == (
        f"undaunted: local rank 0: cannot enter the working directory '{tmp_path}/gone': No such "
        "file or directory; start the launcher in one that exists on this node\n"
    )


def in_own_agent(tmp_path, **fields):
    """Run a worker that must exit 1 before its program; return what the launcher's stderr got."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import harness
agent = harness.AgentProcess(warm=True, modules=[])
answer = agent.run([{{"target": "nosuch.py", **{fields!r}}}])
agent.close()
assert answer["codes"] == [1], answer
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


# --- programs -------------------------------------------------------------------------------------


def test_a_program(fresh_agent, tmp_path):
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$0" "$@" $VALUE $$\nexit 3\n')
    program.chmod(0o700)
    env = {**ENVIRONMENT, "VALUE": "x"}
    code, out, err = run(
        fresh_agent, tmp_path, kind="program", target=str(program), args=["a b", "c"], env=env
    )
    assert (code, err) == (3, "")
    assert out.startswith(f"{program} a b c x ")


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("nosuchprogram", 127, "it is not found; give its path, or correct PATH"),
        ("./script.py", 126, "it is not executable (Permission denied)"),
        ("./", 126, "it is not executable"),
    ],
)
def test_a_program_that_cannot_run(fresh_agent, tmp_path, name, code, says):
    found, out, err = run(fresh_agent, tmp_path, kind="program", target=name)
    assert (found, out) == (code, "")
    assert err.startswith(f"undaunted: cannot run {name!r}: ")
    assert says in err


def test_run_path(agent, tmp_path):
    text = """
import sys
print(__name__, __file__, sys.argv, sys.path[0])
def f(): 1 / 0
f()
"""
    code, out, err = run(agent, tmp_path, text, kind="run_path", target="script.py", args=["x"])
    assert code == 1
    assert out == f"__main__ script.py ['script.py', 'x'] {tmp_path}\n"
    assert "undaunted" not in err.replace(str(tmp_path), "")
    assert err.endswith("ZeroDivisionError: division by zero\n")


# --- evidence and page ----------------------------------------------------------------------------


def test_stacks_are_written_when_asked_for(agent, tmp_path):
    stacks = tmp_path / "stacks"
    text = f"""
import os, signal
def here():
    os.kill(os.getpid(), {EVIDENCE})
def opens():
    fd = os.open({str(stacks)!r}, os.O_RDWR | os.O_CREAT)
    os.dup2(fd, 200)
opens()
here()
print("goes on")
"""
    # Any open descriptor will do at the time of the registration; the program replaces it.
    code, out, err = run(agent, tmp_path, text, evidence_signal=EVIDENCE, evidence_fd=200)
    if code != 0:  # faulthandler does not check descriptors given by number, in all versions
        raise AssertionError(err)
    assert out == "goes on\n"
    assert "in here" in stacks.read_text()


FAKE_PAGE = """
import json, os
CHUNK = 5
class PageWriter:
    attached = True
    reason = ""
    @classmethod
    def attach(cls, value):
        if value == "bad": raise RuntimeError("no page")
        return cls()
    def _tell(self, *what):
        if os.environ.get("UNDAUNTED_PAGE") == "breaks": raise OSError("page is gone")
        print("page", *what, flush=True)
    def milestone(self, name): self._tell("milestone", name)
    def arm_evidence(self, number): self._tell("armed")
    def leave(self): pass
    def record_error(self, error):
        import traceback
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        self._tell(repr(error), frames)
"""


@pytest.fixture(scope="module", params=["warm", "fresh"])
def page_agent(request, tmp_path_factory):
    """Its workers have a fake page writer: a sitecustomize puts it in the place of the real one."""
    path = tmp_path_factory.mktemp("fake")
    (path / "fake_writer.py").write_text(FAKE_PAGE)
    (path / "sitecustomize.py").write_text(
        "import sys, fake_writer; sys.modules['undaunted.progress.writer'] = fake_writer"
    )
    env = {**ENVIRONMENT, "PYTHONPATH": f"{path}:{SRC}", "UNDAUNTED_PAGE": "good"}
    agent = AgentProcess(warm=request.param == "warm", modules=[], env=env)
    yield agent
    agent.close()


def test_the_page_is_told(page_agent, tmp_path):
    text = "print('user')\ndef f(): raise ValueError('x')\nf()"
    code, out, err = run(page_agent, tmp_path, text, evidence_signal=EVIDENCE, evidence_fd=2)
    assert code == 1
    assert out.splitlines() == [
        "page armed",
        "page milestone first_line",
        "user",
        "page ValueError('x') ['<module>', 'f']",
    ]
    assert err.startswith("Traceback")


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "import sys; sys.exit()", "pass"])
def test_an_exit_is_no_error(page_agent, tmp_path, text):
    _, out, _ = run(page_agent, tmp_path, text)
    assert out == "page milestone first_line\n"


def test_an_exit_code_is_announced_before_the_interpreter_is_torn_down(page_agent, tmp_path):
    code, out, _ = run(page_agent, tmp_path, "import sys; sys.exit(3)")
    assert code == 3
    assert out == "page milestone first_line\npage SystemExit(3) ['<module>']\n"


def test_no_exception_hook(page_agent, tmp_path):
    code, out, _ = run(page_agent, tmp_path, "1/0", exception_hook=False)
    assert (code, out) == (1, "page milestone first_line\n")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("bad", "undaunted: local rank 0: it is not monitored: no page\n"),
        ("breaks", "undaunted: local rank 0: it is not monitored from now on: page is gone\n"),
    ],
)
def test_a_broken_page_does_not_disturb(page_agent, tmp_path, value, says):
    env = {**page_agent.env, "UNDAUNTED_PAGE": value}
    code, out, err = run(page_agent, tmp_path, "print('user')", env=env)
    assert (code, out, err) == (0, "user\n", says)


def test_a_page_that_is_not_there(agent, tmp_path):
    env = {**agent.env, "UNDAUNTED_PAGE": "v1:77:0:78:79:1"}
    code, out, err = run(agent, tmp_path, "print('user')", env=env)
    assert (code, out) == (0, "user\n")
    assert err.startswith("undaunted: local rank 0: it is not monitored: ")
    assert err.count("\n") == 1


def test_faults_are_planned_before_the_program(tmp_path):
    (tmp_path / "trigger.py").write_text("def install(): print('installed', flush=True)")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types, trigger, undaunted.faults\n"
        "sys.modules['undaunted.faults.trigger'] = undaunted.faults.trigger = trigger"
    )
    env = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{SRC}"}
    agent = AgentProcess(warm=True, modules=[], env=env)
    try:
        without = run(agent, tmp_path, "print('user')")
        with_plan = run(agent, tmp_path, "print('user')", env={**env, "UNDAUNTED_FAULTS": "x"})
    finally:
        agent.close()
    assert without == (0, "user\n", "")
    assert with_plan == (0, "user\ninstalled\nuser\n", "")


# --- the parent -----------------------------------------------------------------------------------


def test_a_worker_without_its_agent_does_not_run(agent, tmp_path):
    nobody = 2**22 - 1  # Linux gives no larger pids, and this one last
    code, out, err = run(agent, tmp_path, "print('ran')", agent_pid=nobody)
    assert (code, out, err) == (1, "", "")


@pytest.mark.parametrize("warm", [True, False])
def test_workers_die_with_the_agent(tmp_path, warm):
    """SIGKILL of the agent while its workers run: they and the template get SIGKILL as well."""
    ran = tmp_path / "ran"
    os.mkfifo(ran)
    script = tmp_path / "script.py"
    script.write_text(f"import signal\nopen({str(ran)!r}, 'w').write('x\\n')\nsignal.pause()\n")
    agent = AgentProcess(warm=warm, modules=[])
    pid = agent._process.pid
    reader = os.open(ran, os.O_RDWR)  # so that it never is at its end
    agent.post([{"target": str(script)}, {"target": str(script)}])
    try:
        got = b""
        while got.count(b"x") < 2:
            assert process.wait_readable(reader, DEADLINE_S)
            got += os.read(reader, 100)
        fds = {each: process.open_pidfd(each) for each in process.descendants(pid)}
        assert len(fds) == (3 if warm else 2)
        os.kill(pid, signal.SIGKILL)
        agent._process.wait(DEADLINE_S)
        for fd in fds.values():
            assert process.wait_pidfd(fd, DEADLINE_S)
            os.close(fd)
    finally:
        os.close(reader)
        agent.drop()
