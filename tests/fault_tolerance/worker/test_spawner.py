"""Warm where possible, fresh otherwise, never both: the policy, and templates that misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from textwrap import dedent

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.base import process
from undaunted.fault_tolerance.worker import messages
from undaunted.fault_tolerance.worker import spawner as module
from undaunted.fault_tolerance.worker.spawner import Spawner, fresh_reason

from .harness import ENVIRONMENT, AgentProcess
from .test_messages import spec

DEADLINE_S = 30.0


# --- the policy -----------------------------------------------------------------------------------


def test_ranks_may_differ_in_what_is_read_late():
    specs = [spec(env={"A": "1", "RANK": str(rank), "NEW": ""}) for rank in range(2)]
    assert fresh_reason(specs, {"A": "2", "OLD": ""}) == ""


@pytest.mark.parametrize(
    "name", ["PYTHONHASHSEED", "LD_PRELOAD", "PYTHONPATH", "OMP_NUM_THREADS", "LANG", "LC_ALL"]
)
def test_what_is_read_at_the_start_must_be_the_same(name):
    assert fresh_reason([spec(env={name: "1"})], {name: "1"}) == ""
    reason = fresh_reason([spec(env={name: "1"}), spec(local_rank=1, env={name: "2"})], {name: "1"})
    assert reason == (
        f"{name} is '2' for local rank 1 and '1' for the template, and is read only when a "
        "process starts"
    )
    assert f"{name} is not set for local rank 0" in fresh_reason([spec()], {name: "1"})
    assert "not set for the template" in fresh_reason([spec(env={name: "1"})], {})


def test_programs_are_not_forked():
    assert fresh_reason([spec(kind="program")], {}) == "the program is no Python script"


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=3)))
def test_the_templates_own_environment_never_forbids(env):
    assert fresh_reason([spec(env=env)], env) == ""


# --- templates that misbehave: each is a program that gets the template's arguments ---------------

READY = """
import json, os, select, socket, struct, sys
sock = socket.socket(fileno=int(sys.argv[4]))
def take(): return sock.recv(1 << 20)
def tell(**message):
    body = json.dumps(message).encode()
    sock.sendall(struct.pack(">I", len(body)) + body)
take()
tell(type="ready", modules=[], import_ns=0)
take()
"""


def run_fake(tmp_path, code, code_of=None):
    """Spawn one worker with a fake template; return (spawned, reasons, still kept pids)."""
    fake = tmp_path / "fake.py"
    fake.write_text(dedent(code))
    script = tmp_path / "script.py"
    script.write_text("print('it ran', flush=True)")
    reasons: list[str] = []

    async def play():
        spawner = Spawner([sys.executable, "-S", str(fake)], warm=True, pass_fds=())
        spawner.report_to(reasons.append, code_of=code_of)
        spawner._fresh._python = [sys.executable]
        spawner._in_vain = 3  # it is not replaced
        spawner.prepare(ENVIRONMENT, [])
        template = spawner._warm.pid
        try:
            spawned = await spawner.spawn(
                [
                    spec(
                        target=str(script),
                        env=ENVIRONMENT,
                        cwd=str(tmp_path),
                        stdout=str(tmp_path / "out"),
                        agent_pid=os.getpid(),
                    )
                ]
            )
            kept = spawner.pids()
        finally:
            await spawner.close()
            if template is not None:
                os.waitpid(template, 0)
        return spawned, kept

    spawned, kept = asyncio.run(asyncio.wait_for(play(), DEADLINE_S))
    return spawned, reasons, kept


def reap(spawned):
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in spawned.pids]


@pytest.mark.parametrize(
    ("code", "said"),
    [(READY + "os._exit(7)", "exited with code 7"), (READY + "os.kill(os.getpid(), 9)", "SIGKILL")],
)
def test_how_a_template_has_ended_is_said(tmp_path, code, said):
    def code_of(pid):
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    spawned, (reason,), _ = run_fake(tmp_path, code, code_of)
    assert reap(spawned) == [0]
    assert said in reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("pass", "the template ended unexpectedly"),
        (READY, "the template ended unexpectedly"),
        (READY + "tell(type='refused', number=1, reason='has two threads')", "has two threads"),
        (READY + "sock.sendall(b'x' * 100)", "the template ended unexpectedly"),
        (READY + "sock.sendall(struct.pack('>I', 2) + b'{}')", "the template ended unexpectedly"),
        (READY + "sock.sendall(struct.pack('>I', 9) + b'{')", "the template ended unexpectedly"),
        (READY + "tell(type='forked', number=1, pids=[])", "the template ended unexpectedly"),
    ],
    ids=["ends", "ends later", "refuses", "oversized", "no message", "half", "too few"],
)
def test_fresh_workers_instead(tmp_path, code, reason):
    spawned, reasons, kept = run_fake(tmp_path, code)
    assert reap(spawned) == [0]
    assert (tmp_path / "out").read_text() == "it ran\n"
    assert spawned.mode == "fresh"
    assert spawned.reason == reasons[0]
    assert reasons[0].startswith(reason)
    assert (len(reasons), kept) == (1, set())


def test_a_template_that_never_gets_ready(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READY_DEADLINE_S", 0.2)
    spawned, reasons, _ = run_fake(tmp_path, "import signal; signal.pause()")
    assert reap(spawned) == [0]
    assert reasons == ["the template did not finish its imports in 0.2 s"]


def test_a_template_that_does_not_fork(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FORK_DEADLINE_S", 0.3)
    spawned, reasons, _ = run_fake(tmp_path, READY + "import signal; signal.pause()")
    assert reap(spawned) == [0]
    assert reasons == ["the template did not fork in 0.3 s"]


def test_a_late_answer_to_an_earlier_request_is_not_taken_for_this_one(tmp_path):
    late = "tell(type='refused', number=0, reason='the intermediate was killed')\n"
    answer = "tell(type='forked', number=1, pids=[4242])"
    spawned, reasons, _ = run_fake(tmp_path, READY + late + answer)
    assert (spawned.mode, spawned.pids, reasons) == ("warm", [4242], [])


def test_a_template_that_cannot_be_killed_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FORK_DEADLINE_S", 0.2)
    monkeypatch.setattr(module, "_KILL_DEADLINE_S", 0.2)
    signal_pidfd, signals = process.signal_pidfd, []

    def in_vain_at_first(pidfd, number):
        signals.append(number)
        return signals.count(signal.SIGKILL) == 1 or signal_pidfd(pidfd, number)

    monkeypatch.setattr(process, "signal_pidfd", in_vain_at_first)
    with pytest.raises(OSError, match="does not answer and cannot be killed"):
        run_fake(tmp_path, READY + "import signal; signal.pause()")
    assert signals == [signal.SIGCONT, signal.SIGKILL, signal.SIGKILL]


STOPS = """
template = os.getpid()
if os.fork() == 0:  # says that the template is ready once it has stopped
    while open(f"/proc/{template}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
        pass
    tell(type="ready", modules=[], import_ns=0)
    os._exit(0)
os.kill(template, signal.SIGSTOP)
os.wait()
"""


def test_a_stopped_template_goes_on_when_it_is_needed(tmp_path):
    before, ready, after = READY.partition('tell(type="ready", modules=[], import_ns=0)\n')
    assert ready
    answer = "tell(type='refused', number=1, reason='it goes on')"
    code = "import signal\n" + before + STOPS + after + answer
    spawned, reasons, _ = run_fake(tmp_path, code)
    assert reap(spawned) == [0]
    assert reasons == ["it goes on"]


def test_a_start_is_called_off_while_the_template_imports(tmp_path):
    fake = tmp_path / "fake.py"
    fake.write_text("import signal; signal.pause()")

    async def play():
        spawner = Spawner([sys.executable, "-S", str(fake)], warm=True, pass_fds=())
        spawner.prepare(ENVIRONMENT, [])
        (template,) = spawner.pids()
        try:
            for _ in range(2):  # one does not call off the next
                spawning = asyncio.ensure_future(
                    spawner.spawn([spec(env=ENVIRONMENT, cwd=str(tmp_path))])
                )
                await asyncio.sleep(0.05)
                assert not spawning.done()
                spawner.call_off()
                with pytest.raises(OSError, match="called off"):
                    await spawning
                assert spawner.pids() == {template}
        finally:
            await spawner.close()
            os.kill(template, signal.SIGKILL)
            os.waitpid(template, 0)

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))


def test_a_start_that_waits_for_another_is_called_off_as_well(tmp_path):
    """They share one template, which serves one request at a time."""
    fake = tmp_path / "fake.py"
    fake.write_text("import signal; signal.pause()")

    async def play():
        spawner = Spawner([sys.executable, "-S", str(fake)], warm=True, pass_fds=())
        spawner.prepare(ENVIRONMENT, [])
        (template,) = spawner.pids()
        one = [spec(env=ENVIRONMENT, cwd=str(tmp_path))]
        try:
            both = [asyncio.ensure_future(spawner.spawn(one)) for _ in range(2)]
            await asyncio.sleep(0.05)
            spawner.call_off()
            for error in await asyncio.gather(*both, return_exceptions=True):
                assert isinstance(error, OSError)
                assert "called off" in str(error)
            assert spawner.pids() == {template}
        finally:
            await spawner.close()
            os.kill(template, signal.SIGKILL)
            os.waitpid(template, 0)

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))


def test_one_request_after_another_reaches_the_template(tmp_path):
    answers = "".join(
        f"take()\ntell(type='forked', number={number}, pids=[{4240 + number}])\n"
        for number in (1, 2)
    )
    fake = tmp_path / "fake.py"
    fake.write_text(READY.removesuffix("take()\n") + answers)

    async def play():
        spawner = Spawner([sys.executable, "-S", str(fake)], warm=True, pass_fds=())
        spawner.prepare(ENVIRONMENT, [])
        (template,) = spawner.pids()
        one = [spec(env=ENVIRONMENT, cwd=str(tmp_path))]
        try:
            return await asyncio.gather(spawner.spawn(one), spawner.spawn(one))
        finally:
            await spawner.close()
            os.waitpid(template, 0)

    both = asyncio.run(asyncio.wait_for(play(), DEADLINE_S))
    assert [(spawned.mode, spawned.pids) for spawned in both] == [
        ("warm", [4241]),
        ("warm", [4242]),
    ]


def test_workers_that_exist_all_the_same_are_not_started_twice(tmp_path, monkeypatch):
    """The answer is on its way when the agent loses patience."""
    monkeypatch.setattr(module, "FORK_DEADLINE_S", 0.3)
    fork = """
template = os.pidfd_open(os.getpid())
if os.fork() == 0:
    # The intermediate, which is there before it is asked for: tells when the template was killed.
    select.select([template], [], [], 20)
    tell(type="forked", number=1, pids=[4242])
    os._exit(0)
"""
    code = READY.replace("tell(type=", fork + "tell(type=", 1) + "import signal; signal.pause()"
    spawned, reasons, _ = run_fake(tmp_path, code)
    assert (spawned.mode, spawned.pids, reasons) == ("warm", [4242], [])
    assert not (tmp_path / "out").exists()


class Played:
    """A spawner whose templates are fakes, and what it says; within `asyncio.run`."""

    def __init__(self, tmp_path, code, modules=()):
        (tmp_path / "fake.py").write_text(dedent(code))
        self.reasons, self.lines, self.templates = [], [], []
        self.spawner = Spawner([sys.executable, "-S", str(tmp_path / "fake.py")], warm=True,
                               pass_fds=())  # fmt: skip
        self.spawner._fresh._python = [sys.executable]
        self.spawner.report_to(self.reasons.append, say=self.lines.append)
        self.spawner.prepare(ENVIRONMENT, modules, note=True)
        self._spec = spec(
            kind="program", target="true", env=ENVIRONMENT, cwd="/", agent_pid=os.getpid()
        )
        self._seen()

    def _seen(self):
        if self.spawner._warm.pid not in self.templates:
            self.templates.append(self.spawner._warm.pid)

    async def spawn_script(self):
        """Start a worker; return its pid, which nobody waits for."""
        return (await self.spawner.spawn([msgspec.structs.replace(self._spec, kind="script")])).pids

    async def start(self, *, kind="script"):
        """Start a worker, and look whether there is another template now; return the mode."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.spawner._fresh, "spawn", lambda specs: [4241])
            spawned = await self.spawner.spawn([msgspec.structs.replace(self._spec, kind=kind)])
        self._seen()
        return spawned.mode

    def kill(self):
        """End the template; wait until it has ended."""
        pidfd = process.open_pidfd(self.templates[-1])
        os.kill(self.templates[-1], signal.SIGKILL)
        assert process.wait_pidfd(pidfd, DEADLINE_S)
        os.close(pidfd)

    def look(self):
        self.spawner.replace_dead_template()
        self._seen()

    async def close(self):
        await self.spawner.close()
        for pid in self.templates:
            os.waitpid(pid, 0)


SERVES = (
    READY.removesuffix("take()\n")
    + "while request := take():\n"
    + "    number = json.loads(request[4:])['number']\n"
    + "    tell(type='forked', number=number, pids=[4242])\n"
)


def played(tmp_path, code, test, modules=()):
    async def play():
        it = Played(tmp_path, code, modules)
        try:
            await test(it)
        finally:
            await it.close()

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))


def test_a_template_that_is_killed_is_replaced_at_once(tmp_path):
    async def test(it):
        assert await it.start() == "warm"
        it.look()
        assert (len(it.templates), it.lines) == (1, []), "it lives"
        for end in range(8):
            it.kill()
            it.look()
            it.look()
            assert len(it.templates) == end + 2
            assert await it.start() == "warm", "it takes any number, if workers come from each"
        assert len(it.lines) == 8
        assert it.lines[0].startswith("the template ended unexpectedly")
        assert it.lines[0].endswith("; another one is started")
        assert it.reasons == []

    played(tmp_path, SERVES, test)


def test_a_template_that_ends_while_the_launcher_stops_is_not_replaced(tmp_path):
    async def test(it):
        assert await it.start() == "warm"
        it.spawner.replace_no_more()
        it.kill()
        it.look()
        assert (len(it.templates), it.lines) == (1, [])

    played(tmp_path, SERVES, test)


def test_one_whose_end_is_noticed_when_it_is_needed_is_replaced_for_the_next_time(tmp_path):
    async def test(it):
        assert await it.start() == "warm"
        it.kill()
        assert await it.start() == "fresh"
        assert len(it.templates) == 2
        assert [reason.endswith("another one is started") for reason in it.reasons] == [True]
        assert await it.start() == "warm"

    played(tmp_path, SERVES, test)


def test_templates_that_never_fork_are_replaced_three_times(tmp_path):
    async def test(it):
        for _ in range(6):
            assert await it.start() == "fresh"
        assert len(it.templates) == 4
        assert len(it.reasons) == 4
        assert not it.reasons[-1].endswith("another one is started")
        it.look()
        assert (len(it.templates), it.lines) == (4, [])

    played(tmp_path, "pass", test)


def test_a_template_that_would_refuse_again_is_not_replaced(tmp_path):
    async def test(it):
        for _ in range(2):
            assert await it.start() == "fresh"
        assert len(it.templates) == 1
        assert it.reasons == ["has two threads"]

    refuses = "tell(type='refused', number=1, reason='has two threads', lasting=True)"
    played(tmp_path, READY + refuses, test)


def test_no_template_is_started_once_it_is_closed(tmp_path):
    async def test(it):
        assert await it.start() == "warm"
        await it.spawner.close()
        it.spawner._warm.unavailable_reason = "it ended"
        it.look()
        assert len(it.templates) == 1

    played(tmp_path, SERVES, test)


def test_no_interpreter(tmp_path):
    reasons: list[str] = []

    async def play():
        spawner = Spawner("/no/such/python", warm=True, pass_fds=())
        spawner.report_to(reasons.append)
        spawner.prepare({}, [])
        try:
            await spawner.spawn([spec()])
        finally:
            await spawner.close()

    with pytest.raises(FileNotFoundError, match="/no/such/python"):
        asyncio.run(play())
    assert len(reasons) == 1
    assert "the template could not be started" in reasons[0]
    assert "/no/such/python" in reasons[0]


# --- the real template ----------------------------------------------------------------------------


def run_real(modules, specs, *, env=None):
    agent = AgentProcess(warm=True, modules=modules, env=env)
    try:
        return [agent.run(group) for group in specs]
    finally:
        agent.close()


def test_a_module_with_a_thread_means_fresh_and_is_named(tmp_path):
    (tmp_path / "busy.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "main.py").write_text("")
    env = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{tmp_path}"}
    one = {"target": str(tmp_path / "main.py")}
    first, second = run_real(["json", "busy", "nosuch"], [[one], [one, one]], env=env)
    assert first["reasons"] == ["the template has 2 threads (since the import of busy)"]
    assert second["reasons"] == first["reasons"], "said once"
    assert (first["mode"], second["mode"], second["codes"]) == ("fresh", "fresh", [0, 0])
    assert first["ready"][2] == {"nosuch": "ModuleNotFoundError: No module named 'nosuch'"}


def test_another_rank_with_another_hash_seed_means_fresh_for_this_round_only(tmp_path):
    (tmp_path / "main.py").write_text("")
    one = {"target": str(tmp_path / "main.py")}
    other = {**one, "env": {**ENVIRONMENT, "PYTHONHASHSEED": "1"}}
    first, second = run_real([], [[one, other], [one, one]])
    assert first["mode"] == "fresh"
    assert "PYTHONHASHSEED is '1' for local rank 1" in first["reason"]
    assert (second["mode"], second["codes"]) == ("warm", [0, 0])


def test_no_processes_left_to_fork(tmp_path):
    """Fork fails for the second worker: the first must not run."""
    (tmp_path / "main.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')")
    (tmp_path / "limit.py").write_text(
        "import os\nreal = os.fork\nleft = [2]\n"
        "def fork():\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: raise BlockingIOError(11, 'no more processes')\n"
        "    return real()\n"
        "os.fork = fork\n"
    )
    env = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{tmp_path}"}
    one = {"target": str(tmp_path / "main.py")}
    (answer,) = run_real(["limit"], [[one, one]], env=env)
    assert answer["mode"] == "fresh"
    assert answer["reason"] == (
        "forking workers failed: BlockingIOError: [Errno 11] no more processes"
    )
    assert answer["codes"] == [0, 0]
    assert (tmp_path / "ran").read_text() == "xx", "each worker ran once"


# --- a template that imports what ranks have ------------------------------------------------------

LEARNED = messages.Learned(groups=[messages.Group({}, ["pone"])])
# The first template and the one that learns are the same program: it knows by what it is asked.
LEARNS = """
import json, os, signal, socket, struct, sys
sock = socket.socket(fileno=int(sys.argv[4]))
def tell(**message):
    body = json.dumps(message).encode()
    sock.sendall(struct.pack(">I", len(body)) + body)
asked = json.loads(sock.recv(1 << 20)[4:])
learns = asked["learned_fd"] >= 0
if learns:
    learned = json.loads(os.pread(asked["learned_fd"], 1 << 20, 0))
    assert learned["groups"] and not asked["note"]
    ANSWER
tell(type="ready", modules=[], import_ns=0, learned=int(learns))
while request := sock.recv(1 << 20):
    tell(type="forked", number=json.loads(request[4:])["number"], pids=[4243 if learns else 4242])
"""


def learned_by(tmp_path, answer, test):
    played(tmp_path, LEARNS.replace("ANSWER", answer), test, modules=["json"])


def test_workers_are_forked_from_the_template_that_has_learned(tmp_path):
    async def test(it):
        assert await it.spawn_script() == [4242]
        ready = await it.spawner.learn(LEARNED)
        it._seen()
        assert ready.learned == 1
        assert await it.spawn_script() == [4243]
        assert it.spawner.pids() == {it.templates[1]}

    learned_by(tmp_path, "pass", test)


def test_one_that_has_to_leave_packages_out_is_ended(tmp_path):
    async def test(it):
        ready = await it.spawner.learn(LEARNED)
        assert ready.left == {"pone": "bad"}
        assert await it.spawn_script() == [4242]
        assert it.spawner.pids() == {it.templates[0]}

    answer = "tell(type='ready', modules=[], import_ns=0, left={'pone': 'bad'}); signal.pause()"
    learned_by(tmp_path, answer, test)


def test_one_that_dies_is_said_and_changes_nothing(tmp_path):
    async def test(it):
        assert await it.spawner.learn(LEARNED) is None
        (line,) = it.lines
        assert line.startswith("the template ended unexpectedly")
        assert "next restart" in line
        assert await it.spawn_script() == [4242]

    learned_by(tmp_path, "os._exit(3)", test)


def test_workers_are_forked_while_it_imports_and_it_is_spared_then_ended(tmp_path):
    async def test(it):
        learning = asyncio.ensure_future(it.spawner.learn(LEARNED))
        await asyncio.sleep(0)
        assert len(it.spawner.pids()) == 2
        assert await it.spawn_script() == [4242]
        learning.cancel()
        await asyncio.wait([learning])
        assert it.spawner.pids() == {it.templates[0]}

    learned_by(tmp_path, "signal.pause()", test)


def test_one_that_dies_while_the_launcher_stops_is_not_missed(tmp_path):
    async def test(it):
        learning = asyncio.ensure_future(it.spawner.learn(LEARNED))
        await asyncio.sleep(0)
        it.spawner.replace_no_more()
        assert await learning is None
        assert it.lines == []

    learned_by(tmp_path, "os._exit(3)", test)


def test_nothing_is_learned_once_it_is_closed(tmp_path):
    async def test(it):
        await it.spawner.close()
        assert await it.spawner.learn(LEARNED) is None

    learned_by(tmp_path, "pass", test)
