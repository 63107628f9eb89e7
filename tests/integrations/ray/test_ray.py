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
# Each rank says who it is, and that it was told to end. It saves for longer than the 3 s after
# which the handler that Ray installs aborts the driver.
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
threading.Event().wait(4)
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
CANCELLING_DRIVER = """
import os, ray, sys
from undaunted.integrations.ray import run
ray.init(runtime_env={"working_dir": "."})

@ray.remote(num_cpus=0, max_retries=0)
def outer(folder, run_id):
    run("wait.py", folder, nodes=2, nproc_per_node=2, run_id=run_id)

outer = outer.remote(*sys.argv[1:])
with open(sys.argv[1] + "/cancel") as file:
    file.read()
ray.cancel(outer)
with open(sys.argv[1] + "/cancel") as file:  # all ends with the driver
    file.read()
try:
    ray.get(outer)
except ray.exceptions.TaskCancelledError:
    print("cancelled")
"""
# Each time it is begun it kills the process of Ray's that hosts its launcher.
KILLED_DRIVER = """
import os, pathlib, ray, re, signal, sys
from undaunted.fault_tolerance import LaunchError
from undaunted.integrations.ray import run

def parent(pid):
    return int(re.search(r"PPid:\\s*(\\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])

def train(here):
    pathlib.Path(here, f"ran-{os.getpid()}").touch()
    caller = parent(parent(os.getppid()))
    os.kill(caller, signal.SIGKILL)
    signal.pause()

ray.init()
try:
    run(train, sys.argv[1], nodes=1, nproc_per_node=1, max_restarts=int(sys.argv[2]))
except LaunchError as error:
    print("raised:", error.message)
"""
VALUES_DRIVER = """
import ray, threading
from undaunted.integrations.ray import run

@ray.remote(num_cpus=0)
class Metrics:
    pass

def train(config, *rest):
    return config

def lock(*args):
    return threading.Lock()

ray.init()
ref, actor = ray.put({"lr": 0.5}), Metrics.remote()
cases = {
    "value": (train, ref, "given"), "nested": (train, {"refs": [ref]}),
    "actor": (train, {}, actor), "closure": (lambda: actor,), "lock": (lock,),
}
for name, (function, *args) in cases.items():
    try:
        print(name, run(function, *args, nodes=1, nproc_per_node=1, max_restarts=2))
    except TypeError as error:
        print(name, "refused:", error)
"""
LATER_DRIVER = """
import os, ray, signal
from undaunted.integrations import ray_nodes
from undaunted.integrations.ray import run

def train():
    world = os.environ["WORLD_SIZE"]
    print("world", world, flush=True)
    while world != "3":
        signal.pause()
    return world

ray.init()
ray_nodes._ALL_S = 1.0
print(run(train, nodes=4, min_nodes=2, elastic=True, nproc_per_node=1))
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
            text, _ = process.communicate(timeout=100)
        except subprocess.TimeoutExpired as error:
            pytest.fail(f"still runs: {(error.output or b'').decode()}")
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


def test_a_job_begins_with_the_nodes_that_are_there(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    """With two of four, and the third, which is free as well, joins."""
    (tmp_path / "driver.py").write_text(LATER_DRIVER)
    code, text = run(tmp_path, cluster, "driver.py")
    assert code == 0, text
    assert "{0: '3', 1: '3', 2: '3'}" in text


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
    assert ("the coordinator" if what == "coordinator" else "the launcher") + " " in text
    assert "it is started again" in text
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
            all_have_begun(tmp_path)
            ranks = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(4)]
            coordinating = coordinators(run_id)
            assert len(coordinating) == 1
            driver.send_signal(number)
            assert wait_until_gone([*ranks, *coordinating], 60.0) == []
            driver.communicate(timeout=60)
        finally:
            driver.kill()
    assert driver.returncode != -signal.SIGABRT
    assert saved(tmp_path) == (set() if number == signal.SIGKILL else set(range(4)))


def test_a_task_that_runs_a_job_is_cancelled(
    job: Path, tmp_path: Path, cluster: dict[str, str]
) -> None:
    """Ray then cancels the launchers, too."""
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "cancel")
    with start(job, cluster, "-c", CANCELLING_DRIVER, str(tmp_path), "cancelled") as driver:
        try:
            all_have_begun(tmp_path)
            ranks = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(4)]
            (tmp_path / "cancel").write_text("")
            assert wait_until_gone(ranks, 60.0) == []
            (tmp_path / "cancel").write_text("")
            text, _ = driver.communicate(timeout=80)
        finally:
            driver.kill()
    assert driver.returncode == 0, text
    assert "\ncancelled\n" in text
    assert saved(tmp_path) == set(range(4))


def all_have_begun(folder: Path) -> None:
    # Held open for writing here, too: no end of file before all have written.
    with (folder / "pipe").open("r+b", buffering=0) as pipe:
        for _ in range(4):
            assert pipe.read(1) == b"x"


def saved(folder: Path) -> set[int]:
    return {int(path.name.removeprefix("saved-")) for path in folder.glob("saved-*")}


@pytest.mark.parametrize("restarts", [0, 1])
def test_launchers_that_are_killed_are_started_as_often_as_the_job(
    tmp_path: Path, cluster: dict[str, str], restarts: int
) -> None:
    (tmp_path / "driver.py").write_text(KILLED_DRIVER)
    code, text = run(tmp_path, cluster, "driver.py", str(tmp_path), str(restarts))
    assert code == 0, text
    assert "\nraised: " in text
    assert len(list(tmp_path.glob("ran-*"))) == 1 + restarts


def test_values_that_travel_and_values_that_do_not(tmp_path: Path, cluster: dict[str, str]) -> None:
    (tmp_path / "driver.py").write_text(VALUES_DRIVER)
    code, text = run(tmp_path, cluster, "driver.py")
    assert code == 0, text
    said = dict(
        line.split(" ", 1)
        for line in text.splitlines()
        if line.split(" ")[0] in {"value", "nested", "actor", "closure", "lock"}
    )
    assert ast.literal_eval(said["value"]) == {0: {"lr": 0.5}}
    for name, words in {
        "nested": ["argument 1", "ObjectRef"],
        "actor": ["argument 2", "ActorHandle"],
        "closure": ["the function", "ActorHandle"],
        "lock": ["the return value of lock()"],
    }.items():
        assert said[name].startswith("refused: ")
        assert all(word in said[name] for word in words), said[name]
    assert "restart 1" not in text


def test_waiting_for_nodes_ends_with_ctrl_c(job: Path, cluster: dict[str, str]) -> None:
    program = (
        "import ray; from undaunted.integrations import ray as adapter, ray_nodes; ray.init(); "
        "ray_nodes._SOON_S = 1; adapter.run('wait.py', nodes=9, nproc_per_node=1)"
    )
    with start(job, cluster, "-c", program) as driver:
        try:
            assert driver.stdout is not None
            assert any("waiting up to 900 s" in line for line in driver.stdout)
            driver.send_signal(signal.SIGINT)
            text, _ = driver.communicate(timeout=60)
        finally:
            driver.kill()
    assert text.strip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("nodes=4", ["4 nodes", "'CPU': 1", "nodes have that much", "wait_s"]),
        ("nodes=1, resources_per_node={'gpu': 1}", ["no node has 'gpu'", "CPU"]),
    ],
)
def test_nodes_that_are_not_there(
    job: Path, cluster: dict[str, str], asked: str, named: list[str]
) -> None:
    program = (
        "import ray; from undaunted.integrations import ray as adapter, ray_nodes; ray.init(); "
        f"ray_nodes._SOON_S = 1; adapter.run('wait.py', {asked}, nproc_per_node=1, wait_s=3)"
    )
    code, text = run(job, cluster, "-c", program)
    assert code == 1
    assert "waiting up to 3 s" in text
    last = text.strip().splitlines()[-1]
    assert last.startswith("TimeoutError: ")
    for words in named:
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
