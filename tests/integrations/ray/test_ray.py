"""`run` on a real Ray cluster, of a head, where the driver is, and three nodes."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import find_blocks
from tests.e2e.launcher import wait_until_gone
from tests.integrations.ray.processes import coordinators
from undaunted.fault_tolerance.launch import LaunchError
from undaunted.fault_tolerance.launch_config import LaunchConfig
from undaunted.integrations import ray as adapter

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    # The cluster, which ends after the last test, keeps processes that wait for something to do.
    pytest.mark.leaves("processes"),
]

REPOSITORY = Path(__file__).parents[3]
PAGE = find_blocks((REPOSITORY / "docs" / "ray.md").read_text())
# Each rank says who it is, and that it was told to end.
WAIT = """
import os, pathlib, signal, sys, threading
import undaunted

told = threading.Event()
signal.signal(signal.SIGINT, lambda *_: told.set())
here, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
(here / f"new-{rank}").write_text(str(os.getpid()))
(here / f"new-{rank}").rename(here / f"pid-{rank}")
os.write(int(os.open(here / "pipe", os.O_WRONLY)), b"x")
undaunted.step(0)
while not told.wait(0.05):
    pass
(here / f"saved-{rank}").touch()
sys.exit("saved")
"""
# Kills the launcher of a rank, its whole node or the coordinator, once.
LOST = """
import os, pathlib, re, signal, sys
import undaunted
from tests.integrations.ray.processes import coordinators

what, who = sys.argv[2:]

def parent(pid):
    return int(re.search(r"PPid:\\s*(\\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])

killed = pathlib.Path(sys.argv[1], "killed")
undaunted.step(0)
if os.environ["RANK"] == who and not killed.exists():
    killed.touch()
    agent = os.getppid()
    front = parent(agent)
    caller = parent(front)  # the process of Ray's
    if what == "coordinator":
        os.kill(*coordinators(os.environ["TORCHELASTIC_RUN_ID"]), signal.SIGKILL)
    else:
        # Of a node, Ray's processes first, so that none of them starts or tells anything.
        nodes = [parent(caller), caller, front, agent]
        for pid in {"agent": [agent], "front": [front], "node": nodes}[what]:
            os.kill(pid, signal.SIGKILL)
        signal.pause()
pathlib.Path(sys.argv[1], "ended-" + os.environ["RANK"]).touch()
"""
LOST_DRIVER = """
import ray, sys
from undaunted.integrations.ray import run
ray.init(runtime_env={"working_dir": "."})
print(run("lost.py", *sys.argv[1:], nodes=2, nproc_per_node=1, max_restarts=1, run_dir=sys.argv[1]))
"""
DRIVER = """
import ray, sys
from undaunted.integrations.ray import run
ray.init(runtime_env={"working_dir": "."})
run("wait.py", sys.argv[1], nodes=2, nproc_per_node=2, run_id=sys.argv[2])
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """Variables of a program that is to find the cluster."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join(map(str, (REPOSITORY / "src", REPOSITORY)))
    env |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:
        serving = subprocess.Popen(
            [sys.executable, "-m", "tests.integrations.ray.cluster", short],
            env=env,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with serving:
            try:
                assert serving.stdout is not None
                address = serving.stdout.readline().strip()
                assert address, "there is no cluster"
                yield {**env, "RAY_ADDRESS": address}
            finally:
                try:
                    serving.communicate(timeout=60)
                finally:
                    serving.kill()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "wait.py").write_text(WAIT)
    (folder / "driver.py").write_text(DRIVER)
    return folder


def start(job: Path, cluster: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=job,
        env=cluster,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(job: Path, cluster: dict[str, str], *arguments: str) -> tuple[int, str]:
    with start(job, cluster, *arguments) as process:
        try:
            text, _ = process.communicate(timeout=80)
        finally:
            process.kill()
    return process.returncode, text


def test_a_job_survives_the_kill_of_a_rank(job: Path, cluster: dict[str, str]) -> None:
    """The script of the page."""
    script = next(block for block in PAGE if block.path == "job.py")
    (job / "job.py").write_text(script.code)
    code, text = run(job, cluster, "job.py", "sigkill:rank=3,iteration=10")
    assert code == 0, text
    assert "restart 1 of 3" in text
    assert re.search(r"rank 3 \(node \S+, pid \d+\) was killed by SIGKILL", text)
    results = ast.literal_eval(re.findall(r"^\{0: .*\}$", text, re.MULTILINE)[-1])
    assert list(results) == [0, 1, 2, 3]
    for result in results.values():
        # Rank 0 may have been stopped before it had saved what all had just done.
        assert result["began"] in {9, 10}
        assert result["ended"] == 20


def test_a_failed_job_says_what_happened(job: Path, cluster: dict[str, str]) -> None:
    """Of both launchers, the one with the rank that failed is heard."""
    script = [block for block in PAGE if block.language == "python" and not block.path]
    (job / "launch.py").write_text(script[-1].code)
    (job / "train.py").write_text(
        "import os, signal\n"
        "if os.environ['RANK'] == '2':\n    raise ValueError('bad batch')\nsignal.pause()\n"
    )
    code, text = run(job, cluster, "launch.py")
    assert code == 1, text
    assert re.search(r"^failed: rank 2 .* failed: ValueError: bad batch", text, re.MULTILINE)


# The last one leaves the cluster with two nodes.
@pytest.mark.parametrize(
    ("what", "rank"), [("agent", 1), ("front", 0), ("coordinator", 1), ("node", 0)]
)
def test_what_was_lost_is_started_again(
    job: Path, tmp_path: Path, cluster: dict[str, str], what: str, rank: int
) -> None:
    """With two nodes that train, whichever is lost; the node elsewhere."""
    (job / "lost.py").write_text(LOST)
    code, text = run(job, cluster, "-c", LOST_DRIVER, str(tmp_path), what, str(rank))
    assert code == 0, text
    print(text)  # shown where something is wrong
    begun_again = "it had begun before" if what == "coordinator" else "Task _launch failed"
    assert begun_again in text
    assert "\n{0: None, 1: None}" in text
    assert {path.name for path in tmp_path.glob("ended-*")} == {"ended-0", "ended-1"}
    assert (tmp_path / "killed").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_all_ends_with_the_driver(
    job: Path, tmp_path: Path, cluster: dict[str, str], number: signal.Signals
) -> None:
    os.mkfifo(tmp_path / "pipe")
    run_id = f"job-{os.getpid()}-{number}"
    with start(job, cluster, "driver.py", str(tmp_path), run_id) as driver:
        try:
            # Held open for writing here, too: no end of file before all have written.
            with (tmp_path / "pipe").open("r+b", buffering=0) as pipe:
                for _ in range(4):
                    assert pipe.read(1) == b"x"
            ranks = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(4)]
            coordinating = coordinators(run_id)
            assert len(coordinating) == 1
            driver.send_signal(number)
            assert wait_until_gone([*ranks, *coordinating], 60.0) == []
            driver.communicate(timeout=60)
        finally:
            driver.kill()
    saved = {path.name for path in tmp_path.glob("saved-*")}
    assert saved == (set() if number == signal.SIGKILL else {f"saved-{rank}" for rank in range(4)})


def test_nodes_that_are_not_there(job: Path, cluster: dict[str, str]) -> None:
    program = "import ray; from undaunted.integrations import ray as adapter; ray.init(); "
    call = "adapter.run('wait.py', nodes=4, nproc_per_node=1, wait_s=2)"
    code, text = run(job, cluster, "-c", f"{program}adapter._SOON_S = 1; {call}")
    assert code == 1
    assert "waiting up to 2 s" in text
    last = text.strip().splitlines()[-1]
    assert last.startswith("TimeoutError: ")
    for words in ("4 nodes", "'CPU': 1", "wait_s"):
        assert words in last


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"min_nodes": 3}, ValueError, "min_nodes 3"),
        ({"nodes": 0}, ValueError, "nodes 0"),
        ({"nodes": "2:3"}, ValueError, "nodes '2:3'"),
        ({"nproc_per_node": 0}, ValueError, "nproc_per_node 0"),
        ({"nproc_per_node": "all"}, ValueError, "nproc_per_node 'all'"),
        ({"resources_per_node": {"CPU": -1}}, ValueError, "resources_per_node 'CPU': -1"),
        ({"max_restart": 3}, TypeError, "max_restart"),
        ({"rdzv_endpoint": "here:1"}, TypeError, "rdzv_endpoint: .* leave it out"),
    ],
)
def test_what_is_wrong_is_refused_before_ray_is_asked(
    given: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        adapter.run("train.py", **{"nodes": 2, "nproc_per_node": 1, **given})


def test_a_script_that_is_not_on_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError, match=r"node n1.*working_dir"):
        adapter._find_script(Path("train.py"), "n1")
    with pytest.raises(LaunchError, match="share"):
        adapter._find_script(tmp_path / "train.py", "n1")
    (tmp_path / "train.py").touch()
    adapter._find_script(Path("train.py"), "n1")


class Tasks:
    """What Ray knows of tasks: those that are running, until they are cancelled."""

    def __init__(self, *running: str) -> None:
        self.running = list(running)
        self.cancelled: list[tuple[str, bool]] = []

    def wait(self, tasks: list[str], **_: Any) -> tuple[list[str], list[str]]:
        return [each for each in tasks if each not in self.running], [
            each for each in tasks if each in self.running
        ]

    def cancel(self, task: str, *, force: bool = False) -> None:
        self.cancelled.append((task, force))
        if force or task == "obeys":
            self.running.remove(task)


def test_only_launchers_that_run_are_cancelled() -> None:
    """Ray aborts the driver when a task is cancelled whose result has just come."""
    tasks = Tasks("obeys", "hangs", "serves")
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    adapter._stop(tasks, ["ended", "obeys", "hangs"], ["serves"], config)
    assert tasks.cancelled == [
        ("obeys", False),
        ("hangs", False),
        ("hangs", True),
        ("serves", True),
    ]
    assert not tasks.running


def test_the_first_cause_is_what_is_raised() -> None:
    ended = LaunchError(1, None, None, None)
    assert adapter._distance(ended) == adapter._distance(ValueError("lost"))
    ended.outcome = "failed"
    assert adapter._distance(ended) < adapter._distance(ValueError("lost"))
