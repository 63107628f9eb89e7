"""Every process of a job gets the signal to stop, in any order, within two seconds.

`SIGNALLED_SAMPLES=200 pytest tests/e2e/test_signal_to_all.py` tries so many, from seed
`SIGNALLED_SEED` on.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launcher import DEADLINE_S, launched, nodes_of_a_job, wait_until_gone

pytestmark = pytest.mark.e2e

SAMPLES = int(os.environ.get("SIGNALLED_SAMPLES", "0"))
FIRST = int(os.environ.get("SIGNALLED_SEED", "0"))
LONGEST_S = 1.9  # from the first process to the last one
# A rank reads each of its batches from each of its workers.
SCRIPT = """
    import contextlib, multiprocessing, os, sys

    def serve(connection):
        with contextlib.suppress(EOFError, OSError):  # the rank has ended
            while True:
                connection.send(connection.recv())

    class Batches:
        def __init__(self, workers, method):
            context = multiprocessing.get_context(method)
            self.ends = []
            for _ in range(workers):
                ours, theirs = context.Pipe()
                context.Process(target=serve, args=(theirs,), daemon=True).start()
                theirs.close()
                self.ends.append(ours)

        def next(self, step):
            for end in self.ends:
                end.send(step)
                assert end.recv() == step

    def begun(step):
        if step == 5:
            os.write(1, b"begun\\n")

    def saved(step):
        os.write(1, f"saved {step}\\n".encode())

    def main():
        import signal, time, undaunted
        batches = Batches(int(sys.argv[1]), sys.argv[2])
        for step in range(100000):
            begun(step)
            undaunted.step(step)
            batches.next(step)
            time.sleep(0.005)
            after(step)

    def session():
        import time
        from undaunted.training import Session
        with Session(save=saved) as session:
            batches = Batches(int(sys.argv[1]), sys.argv[2])
            for step in range(100000):
                begun(step)
                with session.step(step):
                    batches.next(step)
                    time.sleep(0.005)
                if session.should_stop(step):
                    break
        sys.exit(session.exit_code)
"""
PROGRAMS = {
    "none": """
    def after(step):
        pass

    if __name__ == "__main__":
        main()
""",
    "handler": """
    def after(step):
        pass

    told = []
    rank = os.getpid()

    def leave(*_):
        if not told:
            told.append(1)
            if os.getpid() == rank:  # forked workers have the handler, too
                saved("")
            sys.exit(1)

    if __name__ == "__main__":
        import signal
        signal.signal(signal.SIGTERM, leave)
        main()
""",
    "flag": """
    told = []

    def after(step):
        if told:
            saved("")
            for worker in multiprocessing.active_children():
                worker.kill()  # forked ones have the handler, and would not end by SIGTERM
            sys.exit(1)

    if __name__ == "__main__":
        import signal
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
        main()
""",
    "session": """
    if __name__ == "__main__":
        session()
""",
}


class Case:
    """What a seed stands for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        choose = self.random.choice
        self.program = choose(list(PROGRAMS))
        self.workers = choose(["0", "2"])
        self.method = choose(["fork", "forkserver"])
        self.restarts = choose(["0", "3"])
        self.order = choose(["ranks first", "launcher first", "random"])
        self.gap_s = choose([0.0, 0.02, 0.2, LONGEST_S])

    def __repr__(self) -> str:
        return ", ".join(
            f"{name} {value}" for name, value in vars(self).items() if name != "random"
        )

    def signal_all(self, launcher: int) -> None:
        """Send SIGTERM to all processes, from one of them to another one with a gap."""
        pids = [launcher, *_below(launcher)]
        if self.order == "random":
            self.random.shuffle(pids)
        elif self.order == "ranks first":
            pids.reverse()
        moments = sorted(self.random.uniform(0, self.gap_s) for _ in pids)
        began = time.monotonic()
        for pid, moment in zip(pids, moments, strict=True):
            time.sleep(max(0.0, began + moment - time.monotonic()))  # the gap is what is tested
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _below(pid: int) -> list[int]:
    """Processes below another one, of which some may have ended: they are children of ours."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_below(child)]
    return found


# Two ranks, each on a node, that wait for each other; the end of one is an exception in the other.
PEERS = """
    import os, socket, time
    with socket.socket(socket.AF_UNIX) as sock:
        if os.environ["RANK"] == "0":
            sock.bind("meet" + os.environ["TORCHELASTIC_RESTART_COUNT"])
            sock.listen()
            peer = sock.accept()[0]
        else:
            peer = sock
            while peer.connect_ex("meet" + os.environ["TORCHELASTIC_RESTART_COUNT"]):
                time.sleep(0.01)
        os.write(1, f"begun {os.getpid()}\\n".encode())
        peer.recv(1)
        raise RuntimeError("Connection closed by peer")
"""


# Among them each program, with workers and without, and each order.
@pytest.mark.parametrize(
    "seed", range(FIRST, FIRST + SAMPLES) if SAMPLES else [0, 4, 5, 10, 12, 46, 58]
)
def test_all_ranks_save_and_nothing_has_crashed(tmp_path: Path, seed: int) -> None:
    case = Case(seed)
    script = SCRIPT + PROGRAMS[case.program]
    options = ("--nproc-per-node", "2", "--max-restarts", case.restarts)
    with launched(tmp_path, script, *options, args=(case.workers, case.method)) as launcher:
        for _ in range(2):
            launcher.wait_for_next("^begun$", 2 * DEADLINE_S)
        case.signal_all(launcher.process.pid)
        assert launcher.finish(2 * DEADLINE_S) == 75, f"{case}\n{launcher.text}"
        events = launcher.events()
    kinds = [event["event"] for event in events]
    about = f"{case}\n{launcher.text}"
    assert kinds.count("round_started") == 1, about
    assert not {"failure_detected", "verdict"}.intersection(kinds), about
    assert "Traceback" not in launcher.text, about
    saves = [line for line in launcher.text.splitlines() if line.startswith("saved")]
    assert len(saves) == (0 if case.program == "none" else 2), about
    assert len(set(saves)) < 2, about
    assert not saves or "need have saved" not in launcher.text, about


@pytest.mark.parametrize("order", ["launcher first", "rank first"])
def test_a_rank_that_loses_its_peer_on_another_node_has_not_crashed(
    tmp_path: Path, order: str
) -> None:
    with nodes_of_a_job(tmp_path, PEERS, "--nnodes", "2", "--max-restarts", "3") as start:
        one, two = start("one", "is_host=1"), start("two", "is_host=0")
        ranks = [int(each.wait_for(r"begun (\d+)")[1]) for each in (one, two)]
        if order == "launcher first":
            one.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks[0], signal.SIGTERM)
        assert wait_until_gone(ranks, DEADLINE_S) == []
        for each in (one, two):
            each.process.send_signal(signal.SIGTERM)
        assert (one.finish(), two.finish()) == (75, 75), one.text + two.text
        _has_not_crashed(tmp_path, one.text + two.text)


def test_a_crash_on_another_node_is_told_of_at_once(tmp_path: Path) -> None:
    """Though a rank here has lost its peer, which might have got a signal."""
    with nodes_of_a_job(tmp_path, PEERS, "--nnodes", "2", "--max-restarts", "3") as start:
        one, two = start("one", "is_host=1"), start("two", "is_host=0")
        ranks = [int(each.wait_for(r"begun (\d+)")[1]) for each in (one, two)]
        os.kill(ranks[0], signal.SIGKILL)
        for each in (one, two):
            each.wait_for_next("begun")
            each.process.send_signal(signal.SIGTERM)
        assert (one.finish(), two.finish()) == (75, 75), one.text + two.text
        events = _events(tmp_path)
    (verdict,) = [each for each in events if each["event"] == "verdict" and each["rank"] == 0]
    assert verdict["signal"] == "SIGKILL"
    (blamed, *_) = [each for each in events if each["event"] == "round_blamed"]
    assert (blamed["node"], blamed["victims"]) == ("one", ["two"])


def _events(tmp_path: Path) -> list[dict[str, Any]]:
    journals = (tmp_path / "run").glob("journal-*.jsonl")
    return [json.loads(line) for path in journals for line in path.read_text().splitlines()]


def _has_not_crashed(tmp_path: Path, text: str) -> None:
    kinds = [event["event"] for event in _events(tmp_path)]
    assert not {"failure_detected", "verdict", "round_blamed"}.intersection(kinds), text
    assert kinds.count("round_started") == 2, text
    assert "while all ranks were to stop" not in text
