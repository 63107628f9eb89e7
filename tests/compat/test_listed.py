"""Functions of NVRx's listing that work for themselves: each does what its callers expect."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nvidia_resiliency_ext.attribution.base import AttributionState
from nvidia_resiliency_ext.attribution.log_analyzer.nvrx_logsage import (
    chunk_logs_strict,
    lines_after,
)
from nvidia_resiliency_ext.attribution.mcp_integration import module_definitions, server_launcher
from nvidia_resiliency_ext.attribution.mcp_integration.registry import serialize_result
from nvidia_resiliency_ext.attribution.straggler import dist_utils
from nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution import eprint
from nvidia_resiliency_ext.fault_tolerance import launcher
from nvidia_resiliency_ext.fault_tolerance.utils import (
    get_processes_by_pgids,
    terminate_mp_processes,
)
from nvidia_resiliency_ext.inprocess import monitor_process, monitor_thread, state, utils
from nvidia_resiliency_ext.inprocess.tools import inject_fault
from nvidia_resiliency_ext.ptl_resiliency._utils import is_module_available
from nvidia_resiliency_ext.shared_utils.health_check import with_pynvml_lock

# It says that it runs, and waits.
WAITS = "print(flush=True); import sys; sys.stdin.read()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"


def started(code: str, *words: str, **how: Any) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **how,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    return process


def ended(process: subprocess.Popen[str]) -> int:
    with process:
        return process.wait(30)


# --- threads --------------------------------------------------------------------------------------


class Asked(Exception):  # noqa: N818
    """What threads are made to raise."""


def wait_for_ever(garbage: object = None) -> None:
    event = threading.Event()
    del garbage
    while True:
        event.wait(0.001)


@pytest.mark.parametrize(
    "ask",
    [
        lambda ident: monitor_thread.delayed_async_raise(ident, Asked),
        lambda ident: threading.Thread(
            target=inject_fault.async_raise, args=(ident, Asked)
        ).start(),
    ],
)
def test_a_thread_is_made_to_raise(ask: Any) -> None:
    with pytest.raises(Asked):
        wait_for_ever(ask(threading.get_ident()))


def test_a_thread_raises_when_the_event_is_set() -> None:
    event, ident = threading.Event(), threading.get_ident()
    thread = threading.Thread(target=monitor_thread.async_raise, args=(ident, Asked, event))
    thread.start()
    assert thread.is_alive()
    with pytest.raises(Asked):
        wait_for_ever(event.set())
    thread.join()


def test_no_such_thread() -> None:
    for call in (monitor_thread.async_raise, inject_fault.async_raise):
        with pytest.raises(ValueError, match="no thread"):
            call(1, Asked)


def test_the_main_thread_is_aborted_with_a_message() -> None:
    thread = threading.Thread(target=monitor_thread.async_abort_main_thread, args=("rank 3 left",))
    with pytest.raises(monitor_thread.RankShouldRestart, match="rank 3 left"):
        wait_for_ever(thread.start())


class Dropping:
    """Raises where Python drops it."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def test_what_a_finalizer_drops_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: dropped.append(one.exc_type))
    hook = sys.unraisablehook
    with monitor_thread.reraise_if_unraisable(Asked):
        Dropping(KeyError)
        assert dropped == [KeyError]
        with pytest.raises(Asked):
            wait_for_ever(Dropping(Asked))
    assert sys.unraisablehook is hook
    assert dropped == [KeyError]


# --- processes ------------------------------------------------------------------------------------


def test_a_process_is_terminated(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test")
    for code, number in ((WAITS, signal.SIGTERM), (STUBBORN, signal.SIGKILL)):
        process = started(code)
        assert monitor_process.is_process_active(process)
        monitor_process.terminate_process(process, timedelta(seconds=0.2), log)
        assert not monitor_process.is_process_active(process)  # not waited for yet
        assert ended(process) == -number
    assert [record.args for record in caplog.records] == [(process.pid,)]
    monitor_process.terminate_process(process, timedelta(seconds=1), log)


def test_a_stopped_process_is_terminated() -> None:
    process = started(WAITS)
    process.send_signal(signal.SIGSTOP)
    monitor_process.terminate_process(process, timedelta(seconds=30), logging.getLogger("test"))
    assert ended(process) == -signal.SIGTERM


def test_a_function_outlives_its_process() -> None:
    code = """
import os, sys
from nvidia_resiliency_ext.inprocess.monitor_process import daemonize_fn

def say(word, *, end):
    sys.stdin.read()  # until the parent has ended, and the test says so
    print(word, os.getsid(0) != int(sys.argv[1]), end=end, flush=True)

daemonize_fn(say, ("daemon",), {"end": "."})
os._exit(3)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(os.getsid(0))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.wait(60) == 3
    assert process.communicate(timeout=60)[0] == "daemon True."


def test_processes_of_groups_are_found_and_helpers_of_multiprocessing_ended() -> None:
    helper = started(STUBBORN, "multiprocessing", process_group=0)
    other = started(WAITS, process_group=helper.pid)
    found = {one["pid"]: one for one in get_processes_by_pgids({helper.pid})}
    assert found.keys() == {helper.pid, other.pid}
    one = found[helper.pid]
    assert (one["ppid"], one["pgid"]) == (os.getpid(), helper.pid)
    assert one["cmdline"].endswith("multiprocessing")
    assert {"name", "status"} <= one.keys()
    terminate_mp_processes({1}, {helper.pid})
    assert helper.poll() is None
    terminate_mp_processes({os.getpid()}, {helper.pid})
    assert ended(helper) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    ended(other)
    for without in (False, True):
        own = {each["pid"] for each in get_processes_by_pgids([os.getpgid(0)], without)}
        assert (os.getpid() in own) is not without


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("segfault(0, say)", signal.SIGSEGV),
        ("abort(0, say)", signal.SIGABRT),
        ("send_signal(os.getpid(), 9, 0, say)", signal.SIGKILL),
    ],
)
def test_faults_that_end_the_process(call: str, number: int, tmp_path: Path) -> None:
    code = f"""
import os
from nvidia_resiliency_ext.shared_utils.inject_fault import *

def say():
    print("now", flush=True)

{call}
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert (result.returncode, result.stdout) == (-number, "now\n")


def test_faults_that_raise() -> None:
    called: list[int] = []
    inject_fault.workload_exception(0, lambda: called.append(1))
    with pytest.raises(inject_fault.InjectedException):
        inject_fault.maybe_raise_workload_exception()
    inject_fault.clear_workload_exception()
    asks = (threading.get_ident(), 0, lambda: called.append(2))
    thread = threading.Thread(target=inject_fault.async_raise_exception, args=asks)
    with pytest.raises(inject_fault.InjectedException):
        wait_for_ever(thread.start())
    assert called == [1, 2]
    before = signal.signal(signal.SIGUSR1, inject_fault.termination_signal_handler)
    try:
        with pytest.raises(inject_fault.InjectedException):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_faults_are_the_same_in_both_places() -> None:
    from nvidia_resiliency_ext.shared_utils import inject_fault as new

    assert all(getattr(inject_fault, name) is getattr(new, name) for name in new.__all__)


# --- in-process restart ---------------------------------------------------------------------------


def test_begin_and_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    @utils.log_exec
    def halve(number: int) -> float:
        return 1 / number

    caplog.set_level(logging.DEBUG, "nvrx")
    logging.getLogger("nvrx").addHandler(caplog.handler)
    try:
        assert halve(2) == 0.5
        with utils.log_exec("the block"):
            pass
        with pytest.raises(ZeroDivisionError):
            halve(0)
    finally:
        logging.getLogger("nvrx").removeHandler(caplog.handler)
    lines = list(dict.fromkeys(record.getMessage() for record in caplog.records))
    assert [("halve" in line, "the block" in line) for line in lines][:4] == [
        *[(True, False)] * 2,
        *[(False, True)] * 2,
    ]
    assert "ZeroDivisionError" in lines[-1]


def test_a_dataclass_is_frozen() -> None:
    @dataclasses.dataclass
    class Place:
        rank: int
        names: list[str] = dataclasses.field(default_factory=list)

    made = state.freeze_dataclass(Place)(3)
    assert (made.rank, made.names) == (3, [])
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.rank = 4
    assert state.freeze_dataclass(state.State) is state.FrozenState


# --- attribution ----------------------------------------------------------------------------------


def test_lines_of_a_log() -> None:
    lines = ["a", "b needle", "c", "needle", "d"]
    assert lines_after(lines, "needle") == ["c", "needle", "d"]
    assert lines_after(lines, "other") == lines


def test_cycles_of_a_log() -> None:
    def mark(cycle: int) -> str:
        return f"[INFO] profiling.py:93 Cycle: {cycle} Event: rendezvous"

    lines = ["begin", mark(0), mark(0), "first", mark(1), "second"]
    assert chunk_logs_strict(lines) == {0: [mark(0), "first"], 1: [mark(1), "second"]}
    assert chunk_logs_strict(["a", "b"]) == {0: ["a", "b"]}
    assert chunk_logs_strict([]) == {0: []}


def test_results_as_text() -> None:
    @dataclasses.dataclass
    class Result:
        path: Path
        state: AttributionState

    found = json.loads(serialize_result([Result(Path("/a"), AttributionState.STOP), {"b": {1}}]))
    assert found == [{"path": "/a", "state": "STOP"}, {"b": [1]}]
    assert serialize_result(None) == "null"


def test_arguments_of_analyses() -> None:
    module_definitions.register_all_modules()
    made = module_definitions.create_args_from_dict("log_fr_analyzer", {"log_path": "/a", "x": 1})
    assert made == argparse.Namespace(log_path="/a", fr_path=None, x=1)
    with pytest.raises(ValueError, match="log_analyzer"):
        module_definitions.create_args_from_dict("other", {})


def test_tools_for_assistants_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["server_launcher", "--help"])
    assert server_launcher.main() == 0


def test_lines_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    eprint("a", 1, sep="-")
    assert capsys.readouterr() == ("", "a-1\n")


@pytest.mark.torch
def test_a_process_without_a_group_is_alone() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.0])
    assert dist_utils.all_gather_object({"a": 1}, None) == [{"a": 1}]
    assert (dist_utils.get_rank(None), dist_utils.get_world_size(None)) == (0, 1)
    assert dist_utils.get_device_for_backend(None).type == "cpu"
    assert dist_utils.all_reduce(tensor) is None
    assert dist_utils.gather_on_rank0(tensor) == [tensor]


@pytest.mark.torch
def test_an_object_travels_as_bytes() -> None:
    pytest.importorskip("torch")
    from nvidia_resiliency_ext.checkpointing.local.replication import _torch_future

    data, size = _torch_future.object_to_tensor({"a": (1, None)}, "cpu")
    assert data.numel() == size.item()
    assert _torch_future.tensor_to_object(data, size) == {"a": (1, None)}

    def takes(a: int, *, b: int = 2) -> tuple[int, int]:
        return a, b

    assert _torch_future.call_with_only_valid_kwargs(takes, a=1, c=3) == (1, 2)


# --- other ----------------------------------------------------------------------------------------


def test_one_thread_at_a_time() -> None:
    inside: list[int] = []

    @with_pynvml_lock
    def enter(depth: int) -> int:
        inside.append(depth)
        assert len(inside) <= 2  # the same thread comes in twice
        if depth:
            enter(depth - 1)
        inside.pop()
        return depth

    threads = [threading.Thread(target=lambda: [enter(1) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert enter(1) == 1
    assert not inside


def test_whether_a_module_is_there() -> None:
    names = ("json", "undaunted.no_such_module", "no_such_package.module")
    assert [is_module_available(name) for name in names] == [True, False, False]


# --- the launcher from Python ---------------------------------------------------------------------


def test_words_of_the_command_line() -> None:
    assert launcher.parse_min_max_nnodes("2:4") == (2, 4)
    assert launcher.parse_min_max_nnodes("3") == (3, 3)
    assert launcher.determine_local_world_size("3") == 3
    assert launcher.determine_local_world_size("cpu") >= 1
    with pytest.raises(ValueError, match="workers"):
        launcher.determine_local_world_size("none")
    args = launcher.parse_args(["--master-addr", "node0", "train.py"])
    assert launcher.get_rdzv_endpoint(args) == "node0:29400"
    assert launcher.get_rdzv_endpoint(argparse.Namespace(rdzv_endpoint="n:1")) == "n:1"
    assert launcher.get_use_env(args)
    assert not launcher.get_use_env(argparse.Namespace(use_env=False))


def test_a_configuration_from_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "4")
    words = (
        "--nnodes 1:2 --nproc-per-node 2 --rdzv-endpoint n:1 --rdzv-id job --rdzv-conf lease=3 "
        "--ft-safety-factor 2 --ft-restart-policy min-healthy --signals-to-handle SIGTERM,SIGHUP "
        "--redirects 0:1 --health-command true --strike-limit 4/2d --advice act --elastic "
        "-m package.train --lr 1"
    )
    args = launcher.parse_args(words.split())
    config, entrypoint, given = launcher.config_from_args(args, launcher_log_file="/tmp/l.log")
    assert (entrypoint, given) == (sys.executable, ["-u", "-m", "package.train", "--lr", "1"])
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 2, 2)
    assert (config.run_id, config.rdzv_endpoint, config.restart_policy) == (
        "job",
        "n:1",
        "min-healthy",
    )
    assert (config.max_restarts, config.term_timeout) == (4, 1800)
    assert config.fault_tol_cfg is not None
    assert config.fault_tol_cfg.safety_factor == 2.0
    assert config.rdzv_configs == {"lease": "3"}
    assert config.signals_to_handle == "SIGTERM,SIGHUP"
    assert config.redirects == {0: 1}
    assert config.elastic
    assert config.options == {
        "advice": "act",
        "health_command": ["true"],
        "strike_limit": "4/172800",
        "ft_nvrx_logfile": "/tmp/l.log",
    }
    again = launcher.get_args_parser().parse_args(["--no-python", "true", "-x"])
    assert launcher.config_from_args(again)[1:] == ("true", ["-x"])
    again = launcher.get_args_parser().parse_args(["--run-path", "/train.py", "-x"])
    assert launcher.config_from_args(again)[1:] == (launcher.run_script_path, ["/train.py", "-x"])


@pytest.mark.e2e
def test_a_job_from_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import os, pathlib, sys
out = pathlib.Path(sys.argv[1] + os.environ["RANK"])
out.write_text(os.environ["TORCHELASTIC_RUN_ID"])
"""
    (tmp_path / "train.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    words = ["--nproc-per-node=2", "--rdzv-id=j", "--run-path", "train.py", "out"]
    launcher.run(launcher.parse_args(words))
    assert [(tmp_path / f"out{rank}").read_text() for rank in (0, 1)] == ["j", "j"]
    config = launcher.LaunchConfig(1, 1, 1, run_id="again")
    with pytest.raises(launcher.LaunchError):
        launcher.launch_agent(config, sys.executable, ["-c", "raise SystemExit(5)"])


def test_a_check_of_the_node() -> None:
    assert launcher.get_node_health_check() is None
    launcher.init_node_health_check("unix:///tmp/nvhcd")
    try:
        assert launcher.get_node_health_check() is not None
    finally:
        launcher.init_node_health_check("")
    assert launcher.get_node_health_check() is None
