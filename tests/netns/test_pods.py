"""Launchers as Kubernetes runs them: the first process of a pod, with what a pod lacks."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.launcher import DEADLINE_S, alive, explained
from tests.netns.hosts import Hosts
from tests.netns.job import Job
from tests.netns.pods import NAMESPACES, Pod, memory_group, why_no_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(why_no_pods()), reason=why_no_pods())]

NOBODY = 54321  # has no entry in passwd
RESTRICTED: dict[str, Any] = {"uid": NOBODY, "read_only": True}
TWO = ("--nproc-per-node", "2")

FAILS_ONCE = """
    import os, sys, undaunted
    for step in range(10):
        undaunted.step(step)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(3)
    os.write(1, "rank {RANK} ends\\n".format(**os.environ).encode())
"""

LOADER = """
    import os, sys, torch, undaunted
    from undaunted.checkpointing import Checkpointer
    from undaunted.training import Session

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1_000_000

        def __getitem__(self, index):
            return torch.zeros(BYTES // 4)

    checkpoints = Checkpointer("checkpoints-{RANK}".format(**os.environ), process_group="alone")

    def saved(step):
        checkpoints.save(step, {"weights": torch.zeros(1 << 20), "step": step})
        checkpoints.close()
        os.write(1, f"saved {step} \\n".encode())

    if __name__ == "__main__":
        loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2)
        with Session(save=saved) as session:
            for step, batch in enumerate(loader):
                with session.step(step):
                    if step == 5:
                        os.write(1, b"begun\\n")
                if session.should_stop(step):
                    break
        sys.exit(session.exit_code)
"""

# Each program leaves processes behind, whose parent ends first.
ORPHANS = "(exit 3) & (sleep 0.1) & (sleep 600) &"
WAITS = f"""
    import os, signal, subprocess, sys, threading
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    subprocess.run(["sh", "-c", "{ORPHANS}"], check=True)
    os.write(1, b"begun\\n")
    while not told.wait(0.02):
        pass
    sys.exit(1)
"""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """``pod(script, options..., kind of pod=...)`` starts it with ``train.py``."""
    with contextlib.ExitStack() as opened:

        def start(script: str, *options: str, **kind: Any) -> Pod:
            work = tmp_path / "work"
            work.mkdir()
            (work / "train.py").write_text(textwrap.dedent(script))
            started = Pod(["--run-dir", "run", *options, "train.py"], work, **kind)
            opened.callback(started.close)
            return started

        yield start


def begun(pod: Pod, ranks: int = 2) -> None:
    for _ in range(ranks):
        pod.wait_for_next("^begun$")


def test_a_pod_is_told_to_stop(pod: Callable[..., Pod]) -> None:
    """Workers of data loaders do not keep the ranks from saving, nor does a tiny /dev/shm."""
    run = pod(LOADER.replace("BYTES", "4096"), *TWO, shm="1m", **RESTRICTED)
    begun(run)
    run.tell(signal.SIGTERM)
    assert run.finish() == 75, run.text
    steps = [line.split()[1] for line in run.seen if line.startswith("saved ")]
    assert len(steps) == 2, run.text
    assert len(set(steps)) == 1, run.text
    assert not [event for event in run.events("decision") if event["action"] == "restart"]
    for rank in range(2):
        assert list((run.run_dir.parent / f"checkpoints-{rank}").iterdir())


def test_orphans_of_ranks_and_of_others_are_reaped(pod: Callable[..., Pod]) -> None:
    """Those of `kubectl exec` come to the launcher, since it is the first process."""
    run = pod(WAITS, *TWO)
    begun(run)
    for _ in range(5):
        run.exec("sh", "-c", ORPHANS)
    deadline = time.monotonic() + DEADLINE_S
    while left := run.zombies():
        assert time.monotonic() < deadline, f"nobody takes note of the ends of {left}"
        time.sleep(0.02)
    run.tell(signal.SIGTERM)
    assert run.finish() == 75, run.text


def test_a_rank_fails_in_a_pod_that_can_write_tmp_only(pod: Callable[..., Pod]) -> None:
    kind = RESTRICTED | {"tmp": True}
    run = pod(FAILS_ONCE, *TWO, "--max-restarts", "1", "--run-dir", "/tmp/run", **kind)
    assert run.finish() == 0, run.text
    for rank in range(2):
        run.wait_for(f"^rank {rank} ends")


def test_a_pod_that_can_write_nothing_is_told_what_it_needs(pod: Callable[..., Pod]) -> None:
    run = pod(FAILS_ONCE, *TWO, "--run-dir", "/srv/run", **RESTRICTED)
    assert run.finish() == 2
    assert "--run-dir" in run.text
    assert "Traceback" not in run.text


def test_a_signal_that_is_not_handled_ends_a_pod(pod: Callable[..., Pod]) -> None:
    """The kernel keeps it from the first process: the launcher ends by itself."""
    run = pod(WAITS, *TWO, "--signals-to-handle", "SIGTERM")
    begun(run)
    run.tell(signal.SIGHUP)
    assert run.finish() == 128 + signal.SIGHUP, run.text
    run.wait_for("SIGHUP")
    assert not alive(run.first_pid)


def test_a_loader_that_needs_more_shared_memory_than_a_pod_has(pod: Callable[..., Pod]) -> None:
    run = pod(LOADER.replace("BYTES", str(4 << 20)), "--nproc-per-node", "1")
    assert run.finish() == 1, run.text
    assert any("/dev/shm" in line for line in run.seen if "undaunted" in line), run.text
    assert explained(run.run_dir)["cause"] == "shared_memory_full"


# The last rank takes more memory than there is, once.
EATS = """
    import os
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        bytearray(1 << 30)
    os.write(1, "rank {RANK} ends\\n".format(**os.environ).encode())
"""


def test_a_rank_takes_more_memory_than_its_pod_may(pod: Callable[..., Pod]) -> None:
    with contextlib.ExitStack() as opened:
        try:
            group = opened.enter_context(memory_group(400 << 20))
        except OSError as error:
            pytest.skip(f"no control groups of memory here: {error}")
        run = pod(EATS, *TWO, "--max-restarts", "1", group=group)
        assert run.finish() == 0, run.text
    assert explained(run.run_dir)["cause"] == "host_out_of_memory"


CALL = """
    import os
    from undaunted import inprocess
    about = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    os.environ.update(about)
    inprocess.Wrapper()(lambda: print("called"))()
"""


def test_a_call_in_the_first_process_says_that_nothing_can_end_it() -> None:
    """Without a launcher: a pod whose command is `python train.py`."""
    program = (sys.executable, "-c", textwrap.dedent(CALL))
    enter = ("unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc")
    line = ("sh", "-ec", 'ip link set lo up; exec "$@"', "sh")
    done = subprocess.run(
        [*enter, *line, *program], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "called\n"), done.stderr
    assert "undaunted run" in done.stderr


class Names:
    """The name service of pods: what it knows of them is what has been told last."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "names"
        self.know({})
        here = shlex.quote(str(self._file))
        self.boot = f"mount --bind {here} /etc/hosts && mount --bind /dev/null /etc/resolv.conf"

    def know(self, addresses: dict[str, str]) -> None:
        known = "".join(f"{at} {name}.train {name}\n" for name, at in addresses.items())
        self._file.write_text(f"127.0.0.1 localhost\n{known}")


def test_a_pod_is_known_late_and_its_successor_has_another_address(tmp_path: Path) -> None:
    """Pods of an indexed Job behind a headless service; the first one coordinates."""
    names, first = Names(tmp_path), "train-0"
    pods = [first, "train-1", "train-2", "train-3"]
    with contextlib.ExitStack() as opened:
        hosts = Hosts(pods, names.boot)
        opened.callback(hosts.close)
        run = Job(hosts, tmp_path, "3:4", "--rdzv-endpoint", f"{first}.train:29400")
        opened.callback(run.close)
        run.start(*pods[1:])
        for name in pods[1:]:
            run[name].wait_for("looking for the coordinator")
        names.know({name: hosts.address(name) for name in pods})
        run.start(first)
        run.begins(0, *pods[:3])

        hosts.stop(first)
        run.begins(1, *pods[1:])
        hosts.move(first)
        names.know({name: hosts.address(name) for name in pods})
        run.start(first)
        run[first].wait_for(f"spare nodes: {first}")
        run.finish()
        run.ends(*pods)
