"""Ranks of a session stop together, having saved, whoever asks for it and when."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests import warm
from tests.e2e.launcher import launched, nodes_of_a_job
from tests.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

# No collective keeps these ranks together, and none is as fast as another.
SCRIPT = """
    import logging, os, signal, sys, time
    from pathlib import Path
    from undaunted.training import Session
    logging.basicConfig(level="INFO")
    rank, phase = int(os.environ["RANK"]), os.environ.get("PHASE", "")
    def say(text):
        os.write(1, f"rank {rank} {text}\\n".encode())
    def save(iteration):
        if phase == "save" and iteration < 9:
            say("stands")
            time.sleep(0.2)
        say(f"saves {iteration}")
    with Session(save=save) as session:
        if phase == "setup":
            say("stands")
            time.sleep(0.1 * rank)
        Path(f"begun-{rank}").touch()
        while len(list(Path().glob("begun-*"))) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
        for iteration in range(20000):
            with session.step(iteration):
                time.sleep(0.002 * (1 + rank))
            if iteration == 5:
                say("steps")
                if phase == "self" and rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                if phase == "asked" and rank == 0:
                    session.request_stop()
            if phase == "save" and iteration == 6:
                session.save(iteration)
            if session.should_stop(iteration):
                say(f"stops after {iteration}: {session.stop.reason.value}")
                break
    sys.exit(session.exit_code)
"""


def stops(text: str) -> list[str]:
    """What ranks say of their stop, without their rank."""
    return re.findall(r"rank \d+ stops (.*)", text)


@pytest.mark.parametrize(
    ("phase", "cue", "reason"),
    [
        ("loop", "rank 1 steps", "preempted"),
        ("setup", "rank 1 stands", "preempted"),
        ("save", "rank 1 stands", "preempted"),
        ("self", "", "preempted"),
        ("asked", "", "requested"),
    ],
)
def test_all_ranks_stop_after_one_iteration(
    tmp_path: Path, phase: str, cue: str, reason: str
) -> None:
    with launched(tmp_path, SCRIPT, "--nproc-per-node", "3", PHASE=phase) as launcher:
        if cue:
            launcher.wait_for(cue)
            launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75, launcher.text
        (agreed,) = launcher.events("stop_agreed")
    said = stops(launcher.text)
    assert len(said) == 3
    assert set(said) == {f"after {agreed['iteration']}: {reason}"}
    assert launcher.text.count(f"saves {agreed['iteration']}") == 3


def test_a_stop_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    evaluation = """if iteration == 5:
                for batch in session.evaluating(range(20000 * (rank + 1))):
                    if batch == 3:
                        say("evaluates")
                    time.sleep(0.001 * (1 + rank))
                say("leaves")
            if session.should_stop("""
    script = SCRIPT.replace("if session.should_stop(", evaluation)
    with launched(tmp_path, script, "--nproc-per-node", "3") as launcher:
        launcher.wait_for("rank 2 evaluates")
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75, launcher.text
    assert launcher.text.count("leaves") == 3
    assert stops(launcher.text) == ["after 5: preempted"] * 3
    assert launcher.text.count("saves 5") == 3


def test_on_two_nodes(tmp_path: Path) -> None:
    with nodes_of_a_job(tmp_path, SCRIPT, "--nnodes", "2", "--nproc-per-node", "2") as start:
        nodes = [start("a", "is_host=1"), start("b", "is_host=0")]
        for launcher in nodes:
            launcher.wait_for("steps")
        nodes[1].process.send_signal(signal.SIGTERM)
        assert [launcher.finish() for launcher in nodes] == [75, 75]
    said = stops("\n".join(launcher.text for launcher in nodes))
    assert len(said) == 4
    assert len(set(said)) == 1


def test_a_loop_that_ends_before_is_finished(tmp_path: Path) -> None:
    # A process that has left its session is told to end, too: here one that does not mind.
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    rank, phase ="
    script = SCRIPT.replace("range(20000)", "range(6)").replace("rank, phase =", deaf)
    with launched(tmp_path, script, "--nproc-per-node", "2", PHASE="self") as launcher:
        launcher.finish()
        (ended,) = launcher.events("job_ended")
    assert "stops" not in launcher.text
    assert (ended["outcome"], ended["exit_code"]) == ("finished", 0)


def test_a_failure_does_not_wait_for_sessions(tmp_path: Path) -> None:
    """They take SIGTERM for a wish to stop, so they get another signal."""
    script = """
        import os, time
        from pathlib import Path
        from undaunted.training import Session
        rank = int(os.environ["RANK"])
        with Session() as session:
            for iteration in range(20000):
                with session.step(iteration):
                    time.sleep(0.01)
                if rank == 1 and Path("asked").exists():
                    raise ValueError("bad batch")
                session.should_stop(iteration)
                if rank == 0:
                    Path("asked").touch()
    """
    with launched(tmp_path, script, "--nproc-per-node", "2") as launcher:
        assert launcher.finish() == 1
        ends = {end["rank"]: end.get("signal") for end in launcher.events("rank_exited")}
    assert ends == {0: "SIGKILL", 1: None}


def test_a_save_that_fails_does_not_keep_the_others_for_long(tmp_path: Path) -> None:
    script = """
        import os, signal, time
        from undaunted.training import Session
        rank = int(os.environ["RANK"])
        def save(iteration):
            if rank == 1:
                raise OSError("disk full")
            time.sleep(600)  # waits for the others
        with Session(save=save) as session:
            for iteration in range(20000):
                with session.step(iteration):
                    time.sleep(0.01)
                if iteration == 20 and rank == 1:
                    session.request_stop()
                if session.should_stop(iteration):
                    break
    """
    options = ("--nproc-per-node", "2", "--workers-stop-timeout", "1s")
    with launched(tmp_path, script, *options) as launcher:
        assert launcher.finish() == 75
    assert "rank 1: raised OSError: disk full, " in launcher.text


def test_a_code_of_a_rank_means_nothing(tmp_path: Path) -> None:
    script = "import sys; sys.exit(75)"
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        assert launcher.finish() == 1


def test_ranks_that_do_not_ask_get_the_signal(tmp_path: Path) -> None:
    script = """
        import os, signal, time
        def leave(*_):
            os.write(1, b"told by a signal\\n")
            os._exit(0)
        signal.signal(signal.SIGTERM, leave)
        os.write(1, b"waits\\n")
        time.sleep(60)
    """
    with launched(tmp_path, script, "--nproc-per-node", "1") as launcher:
        launcher.wait_for("waits")
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 0
    assert "told by a signal" in launcher.text


def test_a_rank_that_comes_to_its_session_when_another_one_has_stopped_saves_too(
    tmp_path: Path,
) -> None:
    script = """
        import os, sys, time
        from pathlib import Path
        from undaunted.training import Session, StopReason
        rank, first = int(os.environ["RANK"]), Path("pid")
        def first_has_ended():
            return first.exists() and not Path("/proc", first.read_text()).exists()
        while rank and not first_has_ended():
            time.sleep(0.01)
        time.sleep(0.5 * rank)  # its imports take longer
        with Session(save=lambda i: print(f"rank {rank} saves {i}", flush=True)) as session:
            with session.step(0):
                pass
            if rank == 0:
                first.with_suffix(".new").write_text(str(os.getpid()))
                first.with_suffix(".new").rename(first)
            session.stop_here(StopReason.REQUESTED, 0, rank=rank)
        sys.exit(session.exit_code)
    """
    with launched(tmp_path, script, "--nproc-per-node", "2") as launcher:
        assert launcher.finish() == 75, launcher.text
        ends = {end["rank"]: end.get("signal") for end in launcher.events("rank_exited")}
    assert launcher.text.count("saves 0") == 2
    assert ends == {0: None, 1: None}


def under_torchrun(tmp_path: Path, script: str, **variables: str) -> tuple[str, str]:
    """What two ranks and their launcher print, and the errors."""
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    own = {"MASTER_PORT": str(free_ports(1)), "OMP_NUM_THREADS": "1", **variables}
    with warm.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as torchrun:
        try:
            output, errors = torchrun.communicate(timeout=100)
        finally:
            torchrun.terminate()  # it ends its ranks
    return output, errors


@pytest.mark.torch
def test_under_torchrun(tmp_path: Path) -> None:
    script = "import torch.distributed\n" + textwrap.dedent(SCRIPT)
    output, errors = under_torchrun(tmp_path, script, PHASE="self")
    said = stops(output)
    assert len(said) == 2, errors
    assert len(set(said)) == 1
    iteration = said[0].split()[1].rstrip(":")
    assert output.count(f"saves {iteration}") == 2


# Rank 1 fails before its first step of iteration 0, so that rank 0 has begun one session more.
RESTARTED = """
    import os, signal
    import torch.distributed as dist
    from undaunted.inprocess import CallWrapper, Wrapper
    from undaunted.training import Session

    rank = int(os.environ["RANK"])

    @Wrapper()
    def train(call: CallWrapper = None):
        dist.init_process_group("gloo")
        with Session() as session:
            if call.iteration == 0 and rank == 1:
                dist.barrier()
                raise RuntimeError("the state cannot be loaded")
            for step in range(10**6):
                with session.step(step):
                    pass
                dist.barrier()
                if call.iteration == 1 and rank == 0 and step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                if session.should_stop(step):
                    os.write(1, f"rank {rank} stops after {step}\\n".encode())
                    break
        dist.destroy_process_group()

    train()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_after_a_restart_inside_the_process_under_torchrun(tmp_path: Path) -> None:
    output, errors = under_torchrun(tmp_path, RESTARTED)
    said = stops(output)
    assert len(said) == 2, errors
    assert len(set(said)) == 1


def test_alone(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(SCRIPT))
    env = {**os.environ, "PHASE": "self", "RANK": "1", "WORLD_SIZE": "1"}
    ended = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 75
    assert stops(ended.stdout) == ["after 5: preempted"]
    assert "saves 5" in ended.stdout


# Rank 1 finds that its result may be wrong; the others learn it by a file, as by a collective, in
# which all take part.
SUSPICIOUS = """
    import os, sys, time
    from pathlib import Path
    from undaunted.training import Session, StopReason
    rank, slot = int(os.environ["RANK"]), os.environ["LOCAL_RANK"]
    bad = os.environ["BAD"].split(",")  # slots that compute nonsense
    def save(iteration):
        print(f"rank {rank} saves {iteration}", flush=True)
    with Session(save=save) as session:
        print(f"rank {rank} is on slot {slot}", flush=True)
        with session.step(0):
            pass
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        Path(f"begun-{attempt}-{rank}").touch()
        while len(list(Path().glob(f"begun-{attempt}-*"))) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
        verdict = Path(f"verdict-{attempt}")
        if rank == 1:
            verdict.with_suffix(".new").write_text("bad" if slot in bad else "good")
            verdict.with_suffix(".new").rename(verdict)
        while not verdict.exists():
            time.sleep(0.01)
        if verdict.read_text() == "bad":
            why = StopReason[os.environ.get("WHY", "SUSPECT")]
            session.stop_here(why, 0, rank=1 if rank == 1 else None, text="the loss is 1e30")
            assert session.should_stop(1)
    sys.exit(session.exit_code)
"""


def test_a_rank_whose_result_may_be_wrong_goes_to_another_slot(tmp_path: Path) -> None:
    with launched(tmp_path, SUSPICIOUS, "--nproc-per-node", "3", BAD="1") as launcher:
        assert launcher.finish() == 0, launcher.text
        starts = launcher.events("round_started")
        told = [event for event in launcher.events("rank_event") if event["name"] == "stop_suspect"]
        (ended,) = launcher.events("job_ended")
    assert [start["ranks"] for start in starts] == [[0, 1, 2], [1, 2, 0]]
    assert [(event["rank"], event["text"]) for event in told] == [(1, "the loss is 1e30")]
    assert "rank 1 is on slot 0" in launcher.text
    assert launcher.text.count("saves 0") == 3
    assert ended["outcome"] == "finished"


@pytest.mark.parametrize(
    ("why", "bad", "code"),
    [("SUSPECT", "0,1", 16), ("INVALID", "1", 17), ("STRAGGLER", "1", 18)],
)
def test_a_job_that_can_do_nothing_about_it_ends_with_its_code(
    tmp_path: Path, why: str, bad: str, code: int
) -> None:
    with launched(tmp_path, SUSPICIOUS, "--nproc-per-node", "2", BAD=bad, WHY=why) as launcher:
        assert launcher.finish() == code, launcher.text
        (ended,) = launcher.events("job_ended")
    assert (ended["outcome"], ended["exit_code"]) == (why.lower(), code)
    assert "rank 1" in ended["reason"]


def test_simple_exit_codes(tmp_path: Path) -> None:
    words = ("--nproc-per-node", "2", "--exit-codes", "simple")
    with launched(tmp_path, SUSPICIOUS, *words, BAD="1", WHY="INVALID") as launcher:
        assert launcher.finish() == 1, launcher.text
        (ended,) = launcher.events("job_ended")
    assert ended["exit_code"] == 17


def test_an_exit_code_alone_means_nothing(tmp_path: Path) -> None:
    with launched(tmp_path, "import sys; sys.exit(16)", "--nproc-per-node", "1") as launcher:
        assert launcher.finish() == 1, launcher.text


def test_a_rank_that_does_not_end_in_time_is_named(tmp_path: Path) -> None:
    script = SCRIPT.replace("time.sleep(0.2)", "time.sleep(1000)").replace("iteration < 9", "rank")
    words = ("--nproc-per-node", "2", "--term-timeout", "1s")
    with launched(tmp_path, script, *words, PHASE="save") as launcher:
        launcher.wait_for("rank 1 stands")
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75, launcher.text
    assert "rank 1 had not ended 1.0 s after the order to stop" in launcher.text
