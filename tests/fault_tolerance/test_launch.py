"""Jobs from Python: functions, programs, ends and errors."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.launcher import alive, wait_until_gone
from tests.ports import free_ports
from undaunted.fault_tolerance import launch
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.launch import LaunchError, elastic_launch
from undaunted.fault_tolerance.launch_config import LaunchConfig
from undaunted.journal import events, lines

if TYPE_CHECKING:
    from undaunted.journal.events import Event

DEADLINE_S = 60.0
FUNCTIONS = """
import os, sys

def add(base, more):
    rank = int(os.environ["RANK"])
    if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("bad batch")
    print("rank", rank, "adds")
    return {"rank": rank, "sum": base + rank, **more}

def fail_on(rank):
    if int(os.environ["RANK"]) == rank:
        raise KeyError("missing")

def leave():
    sys.exit(0)

def has(module):
    return module in sys.modules
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Any:
    """A module in the current directory, which is new; and $TMPDIR, in it as well."""
    import importlib

    name = f"functions_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    del sys.modules[name]
    assert list((tmp_path / "tmp").iterdir()) == [], "nothing of a call may be left"


def config(ranks: int = 2, *, max_nodes: int = 1, **fields: Any) -> LaunchConfig:
    defaults = {"worker_start": "fresh", "max_restarts": 0}
    return LaunchConfig(1, max_nodes, ranks, **{**defaults, **fields})


def script(tmp_path: Path, text: str, *args: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "main.py", *args],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={"PYTHONPATH": str(Path(launch.__file__).parents[2]), "TMPDIR": str(tmp_path)},
    )


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entrypoint", "args", "words"),
    [
        ("train.py", ("--lr", 0.1), ["train.py", "--lr", "0.1"]),
        ("echo", (Path("/a"),), ["--no-python", "echo", "/a"]),
        (["bash", "-c"], ("true",), ["--no-python", "bash", "-c", "true"]),
        (sys.executable, ("-u", "train.py", 1), ["train.py", "1"]),
        ([sys.executable, "-m", "package.train"], ("x",), ["--module", "package.train", "x"]),
        (sys.executable, ("-c", "1"), ["--no-python", sys.executable, "-c", "1"]),
    ],
)
def test_programs_as_for_torch(entrypoint: Any, args: tuple[Any, ...], words: list[str]) -> None:
    assert launch._program(entrypoint, args) == words


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be an argument of a program"):
        elastic_launch(config(), "train.py")([1])
    with pytest.raises(ValueError, match="entrypoint is empty"):
        elastic_launch(config(), [])()
    with pytest.raises(TypeError, match="the entrypoint is None; give a function, a script"):
        elastic_launch(config(), None)()  # type: ignore[arg-type]


# --- functions -----------------------------------------------------------------------------------


@pytest.mark.e2e
def test_function_returns_by_rank_after_a_restart(functions: Any) -> None:
    job = config(max_restarts=1, redirects=3, log_dir="logs", run_id="one")
    results = elastic_launch(job, functions.add)(10, {"loss": 1.5})
    assert results == {
        0: {"rank": 0, "sum": 10, "loss": 1.5},
        1: {"rank": 1, "sum": 11, "loss": 1.5},
    }
    assert Path("logs/one/attempt_1/1/stdout.log").read_text() == "rank 1 adds\n"


@pytest.mark.e2e
@pytest.mark.torch
@pytest.mark.parametrize("brings", ["", "numpy"])
def test_torch_is_there_before_the_function_is_called(
    functions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brings: str
) -> None:
    """Not where the caller's sys.path has another package that torch would have imported."""
    pytest.importorskip("torch")
    (tmp_path / "alt").mkdir()
    if brings:
        (tmp_path / f"alt/{brings}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "alt"))
    found = elastic_launch(config(worker_start="warm"), functions.has)("torch")
    assert found == dict.fromkeys((0, 1), not brings)


@pytest.mark.e2e
def test_error_is_the_first_cause_with_its_traceback(functions: Any) -> None:
    with pytest.raises(LaunchError) as caught:
        elastic_launch(config(), functions.fail_on)(1)
    error = caught.value
    assert (error.rank, error.exit_code, error.outcome) == (1, 1, "failed")
    assert "rank 1" in error.message
    assert "KeyError: 'missing'" in error.message
    assert "in fail_on" in error.traceback
    assert "call_function" not in error.traceback, "our frames are of no use to anybody"
    assert error.traceback.strip() in str(error)
    assert error.run_dir is not None
    assert list(error.run_dir.glob("journal-*.jsonl"))


@pytest.mark.e2e
def test_rank_that_leaves_returns_nothing(functions: Any) -> None:
    assert elastic_launch(config(1), functions.leave)() == {0: None}


@pytest.mark.e2e
def test_closures_travel_with_cloudpickle_only(
    functions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor = 3

    def inner(pair: tuple[int, int]) -> tuple[int, int]:
        return (pair[0] * factor, pair[1])

    inner.__module__ = "__main__"  # as in a notebook
    assert elastic_launch(config(1), inner)((2, 5)) == {0: (6, 5)}
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TypeError, match="inner cannot travel"):
        elastic_launch(config(1), inner)(2)


@pytest.mark.e2e
def test_function_of_the_script_itself(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        """
        from undaunted.fault_tolerance import LaunchConfig, elastic_launch

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            print(elastic_launch(LaunchConfig(1, 1, 1, worker_start="fresh"), double)(4))
        """,
    )
    assert done.stdout == "{0: 8}\n", done.stderr
    assert "1 rank of double() on" in done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("way", ["spawn", "forkserver", "fork"])
def test_function_of_the_script_in_a_process_of_multiprocessing(tmp_path: Path, way: str) -> None:
    done = script(
        tmp_path,
        f"""
        import multiprocessing
        from dataclasses import dataclass
        from undaunted.fault_tolerance import LaunchConfig, elastic_launch

        @dataclass
        class Twice:
            x: int

        def double(given):
            return Twice(2 * given.x)

        def job():
            config = LaunchConfig(1, 1, 1, worker_start="fresh")
            print(elastic_launch(config, double)(Twice(4)), flush=True)

        if __name__ == "__main__":
            process = multiprocessing.get_context({way!r}).Process(target=job)
            process.start()
            process.join()
        """,
    )
    assert done.stdout == "{0: Twice(x=8)}\n", done.stderr


NOTEBOOK = """
import os
from undaunted.fault_tolerance import LaunchConfig, elastic_launch

factor = 3
def scale(x):
    return (factor * x, os.environ["RANK"])

job = LaunchConfig(1, 1, 2, worker_start="fresh", max_restarts=0)
print(elastic_launch(job, scale)(2))
print(elastic_launch(job, lambda: factor)())
"""
# What IPython does: code of a cell is compiled by itself and run in a module without a file.
IPYTHON = """
import sys, types
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
for number, cell in enumerate(CELLS):
    exec(compile(cell, f"<ipython-input-{number}>", "exec"), main.__dict__)
"""


@pytest.mark.e2e
@pytest.mark.parametrize("how", ["-c", "stdin", "cells"])
def test_functions_of_programs_without_a_file(tmp_path: Path, how: str) -> None:
    first, call, last = NOTEBOOK.partition("\njob =")
    cells = IPYTHON.replace("CELLS", repr([first, call + last]))
    done = subprocess.run(
        [sys.executable, *(["-"] if how == "stdin" else ["-c", NOTEBOOK])]
        if how != "cells"
        else [sys.executable, "-c", cells],
        input=NOTEBOOK if how == "stdin" else "",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={"PYTHONPATH": str(Path(launch.__file__).parents[2]), "TMPDIR": str(tmp_path)},
    )
    assert done.stdout == "{0: (6, '0'), 1: (6, '1')}\n{0: 3, 1: 3}\n", done.stderr


@pytest.mark.e2e
def test_without_cloudpickle_such_functions_are_a_clear_error(tmp_path: Path) -> None:
    code = f"import sys\nsys.modules['cloudpickle'] = None\n{NOTEBOOK}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={"PYTHONPATH": str(Path(launch.__file__).parents[2]), "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "TypeError: the function scale cannot travel between processes: define it at the top level "
        "of a module or script, or install cloudpickle (pip install 'undaunted[notebook]')"
    )


@pytest.mark.e2e
def test_script_that_launches_while_it_is_imported_is_told_so(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        """
        from undaunted.fault_tolerance import LaunchConfig, elastic_launch

        def nothing():
            pass

        job = LaunchConfig(1, 1, 1, worker_start="fresh", max_restarts=0)
        elastic_launch(job, nothing)()
        """,
    )
    assert done.returncode == 1
    assert "if __name__ == '__main__'" in done.stderr


# --- several nodes -------------------------------------------------------------------------------

NODE = """
import os, sys
from undaunted.fault_tolerance import LaunchConfig, LaunchError, elastic_launch

def work(base):
    if os.environ["GROUP_RANK"] == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("bad batch")
    return [base, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])]

if __name__ == "__main__":
    number, port = int(sys.argv[1]), sys.argv[2]
    job = LaunchConfig(
        2,
        2,
        2,
        run_id="job7",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"is_host": number == 0, "rank": number},
        node_name=f"node{number}",
        max_restarts=1,
        worker_start="fresh",
        run_dir="run",
    )
    print(elastic_launch(job, work)(7))
"""


@pytest.mark.e2e
def test_each_of_several_nodes_gets_the_results_of_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(NODE)
    port = free_ports(2)
    nodes = [
        subprocess.Popen(
            [sys.executable, "main.py", str(number), str(port)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                "PYTHONPATH": str(Path(launch.__file__).parents[2]),
                "TMPDIR": str(tmp_path),
                "UNDAUNTED_TOKEN": "a token of the tests",
            },
        )
        for number in range(2)
    ]
    try:
        seen = [node.communicate(timeout=DEADLINE_S) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    assert [out for out, _ in seen] == [
        "{0: [7, 0, 4], 1: [7, 1, 4]}\n",
        "{2: [7, 2, 4], 3: [7, 3, 4]}\n",
    ], seen


@pytest.mark.parametrize(
    ("blamed", "alone", "rank"),
    [("node0", False, 2), ("node1", False, None), ("node0", True, None), ("", True, None)],
)
def test_a_victim_is_not_the_first_cause(
    tmp_path: Path, blamed: str, alone: bool, rank: int | None
) -> None:
    """Nor where a node has given up alone: a rank had lost its peers, or failed long before."""
    told: dict[str, Any] = {"t": 1, "node": "node0", "round": 0}
    journal: list[Event] = [
        events.JournalOpened(**told, pid=1, boot_id="b"),
        events.JobStarted(**told, run_id="job7", argv=[], nproc_per_node=2, max_restarts=0),
        events.RoundStarted(**told, world_size=4, ranks=[2, 3]),
        events.Verdict(**told, kind="crash", rank=2, local_rank=0, pid=4, line="rank 2 failed"),
        events.RoundBlamed(**{**told, "node": blamed}, number=0, line="the first cause"),
        events.JobEnded(
            **told, outcome="failed", exit_code=1, reason="the first cause", alone=alone
        ),
    ]
    if not blamed:
        del journal[-2]
    written = b"".join(lines.encode(event) for event in journal)
    (tmp_path / "journal-node0.jsonl").write_bytes(written)
    job = config(
        2,
        max_nodes=2,
        run_id="job7",
        rdzv_endpoint="host0:29400",
        node_name="node0",
        run_dir=tmp_path,
    )
    found = launch._Launched(job, "job7")
    error = LaunchError(1, found.ended, found.verdict, found.run_dir)
    assert (found.ranks, error.rank) == ([2, 3], rank)
    assert error.message == ("the first cause" if rank is None else "rank 2 failed")


# --- programs ------------------------------------------------------------------------------------


@pytest.mark.e2e
def test_programs_and_settings(functions: Any) -> None:
    assert elastic_launch(config(2), "true")() == {0: None, 1: None}
    Path("hang.py").write_text(
        "import signal, undaunted\nundaunted.step(0)\nwhile True:\n    signal.pause()\n"
    )
    job = config(1, fault_tol_cfg=FaultToleranceConfig(rank_heartbeat_timeout=0.3))
    with pytest.raises(
        LaunchError, match=r"\(limit 0\.3 s, rank_heartbeat_timeout in fault_tol_cfg\)"
    ):
        elastic_launch(job, "hang.py")()


@pytest.mark.e2e
def test_refused_before_the_start(functions: Any, capfd: pytest.CaptureFixture[str]) -> None:
    why = "^nothing was started: script 'missing.py' not found in "
    with pytest.raises(LaunchError, match=why) as caught:
        elastic_launch(config(1), "missing.py")()
    assert (caught.value.exit_code, caught.value.rank) == (2, None)
    assert "missing.py" in capfd.readouterr().err


# --- the caller ends -----------------------------------------------------------------------------

CALLER = """
import os, signal, sys
from undaunted.fault_tolerance import LaunchConfig, elastic_launch

def interrupt(caller, number):
    with open("pids", "w") as file:
        print(os.getpid(), os.getppid(), file=file)
    os.kill(caller, number)
    signal.pause()

if __name__ == "__main__":
    job = LaunchConfig(1, 1, 1, worker_start="fresh")
    elastic_launch(job, interrupt)(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_end_of_the_caller_ends_the_job(tmp_path: Path, number: signal.Signals) -> None:
    done = script(tmp_path, CALLER, str(int(number)))
    assert done.returncode == -number
    assert ("KeyboardInterrupt" in done.stderr) == (number == signal.SIGINT)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert wait_until_gone(pids, 10.0) == []
    assert not any(map(alive, pids))


@pytest.mark.e2e
def test_a_job_can_be_interrupted_where_a_shell_has_its_caller_ignore_sigint(
    tmp_path: Path,
) -> None:
    ignoring = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    job ="""
    done = script(tmp_path, CALLER.replace("\n    job =", ignoring), str(int(signal.SIGTERM)))
    assert "KeyboardInterrupt" in done.stderr
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert wait_until_gone(pids, 10.0) == []


TWICE = """
import os, signal, sys, threading, time
from pathlib import Path
from undaunted.fault_tolerance import LaunchConfig, elastic_launch

def train(caller):
    def save(*_):
        time.sleep(2)
        Path("saved").touch()
        sys.exit(1)
    def interrupt():
        os.kill(caller, signal.SIGINT)
        time.sleep(0.2)
        os.kill(caller, signal.SIGINT)
    signal.signal(signal.SIGINT, save)
    threading.Thread(target=interrupt).start()
    threading.Event().wait(600)

if __name__ == "__main__":
    elastic_launch(LaunchConfig(1, 1, 1, worker_start="fresh"), train)(os.getpid())
"""


@pytest.mark.e2e
def test_an_interrupt_of_the_caller_that_comes_twice_is_one(tmp_path: Path) -> None:
    """As from a terminal and from a wrapper that passes it on."""
    done = script(tmp_path, TWICE)
    assert "KeyboardInterrupt" in done.stderr
    assert (tmp_path / "saved").exists()


def test_a_launcher_that_does_not_even_end_at_the_second_interrupt_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    for name in ("SAME_S", "_KILL_S"):
        monkeypatch.setattr(launch, name, 0.01)
    moments = iter([0.0, 1.0])
    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(launch, "_wait", interrupted)
    stuck = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); "
    program = [sys.executable, "-c", f"{stuck}signal.pause()"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        with pytest.raises(KeyboardInterrupt):
            launch._wait_for_end(launcher)
        assert launcher.wait(30) == -signal.SIGKILL


INTERRUPTED = """
import _thread, sys, threading
from pathlib import Path
from undaunted.fault_tolerance import LaunchConfig, elastic_launch

def interrupt():
    with open("started") as pipe:
        pipe.read()
    _thread.interrupt_main()

if __name__ == "__main__":
    threading.Thread(target=interrupt, daemon=True).start()
    elastic_launch(LaunchConfig(1, 1, 1, worker_start="fresh"), "wait.py")()
"""


@pytest.mark.e2e
def test_an_interrupt_without_a_signal_ends_the_job(tmp_path: Path) -> None:
    """`_thread.interrupt_main`, as Ray cancels a task."""
    os.mkfifo(tmp_path / "started")
    (tmp_path / "wait.py").write_text(
        "open('started', 'w').close()\nimport signal\nsignal.pause()\n"
    )
    done = script(tmp_path, INTERRUPTED)
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
    assert "received SIGINT" in done.stderr


def test_a_launcher_that_was_killed_is_an_error_with_its_last_words() -> None:
    error = LaunchError(1, None, None, Path("run"), "the agent was killed by signal 9")
    assert (error.outcome, error.rank) == ("", None)
    assert error.message == "the launcher ended with 1: the agent was killed by signal 9"


def test_an_error_can_travel_to_another_process() -> None:
    error = LaunchError(2, None, None, Path("run"), "no such file")
    error.rank = 3
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_what_a_killed_caller_has_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, young, other = (
        tmp_path / f"{name}" for name in ("undaunted-call-a", "undaunted-call-b", "c")
    )
    for folder in (left, young, other):
        folder.mkdir()
        (folder / "call.json").touch()
    (tmp_path / "undaunted-call-link").symlink_to(other)
    with launch._own_directory() as first:
        for folder in (left, other, first):
            os.utime(folder, (1, 1))
        with launch._own_directory() as second:
            found = {path.name for path in tmp_path.iterdir()}
    mine = {first.name, second.name}
    assert found == {*mine, "undaunted-call-b", "c", "undaunted-call-link"}
    assert not any(folder.exists() for folder in (first, second))
    assert (other / "call.json").exists()
