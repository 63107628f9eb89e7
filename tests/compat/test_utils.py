"""`fault_tolerance.utils` and `shared_utils` under NVRx's names."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading

import pytest

from nvidia_resiliency_ext.fault_tolerance import utils
from nvidia_resiliency_ext.shared_utils import wait_daemon
from nvidia_resiliency_ext.shared_utils.inject_fault import Fault

BLOCK = {"SLURM_TOPOLOGY_ADDR": "block5.node3", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}
ARRAY = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_NNODES": "4", "SLURM_PROCID": "3"}
NAMED = {"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "nvl72134-T01"}


@pytest.fixture
def environ(monkeypatch):
    def put(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    for name in ("CROSS_SLURM_PROCID", "NVRX_INFRA_RANK_FROM_NODENAME", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    return put


# --- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "skipping", "rank"),
    [
        ({}, False, -1),
        ({"GROUP_RANK": "6"}, False, 6),
        ({"GROUP_RANK": "6", "SLURM_PROCID": "3"}, False, 3),
        (ARRAY, False, 11),
        (ARRAY | BLOCK, False, 5 * 10**10 + 3),
        (ARRAY | BLOCK | {"SLURM_TOPOLOGY_NODES_PER_BLOCK": "18"}, False, 93),
        (ARRAY | BLOCK | {"CROSS_SLURM_PROCID": "7"}, False, 7),
        (ARRAY | BLOCK | {"CROSS_SLURM_PROCID": "7"} | NAMED, False, 7213401),
        (ARRAY | BLOCK | {"CROSS_SLURM_PROCID": "7"} | NAMED, True, 7),
        (ARRAY | BLOCK | NAMED, True, 11),
    ],
)
def test_infrastructure_rank(environ, values, skipping, rank):
    environ(values)
    assert utils.get_infrastructure_rank(skip_nodename_logic=skipping) == rank


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"SLURM_JOB_ID": "1"}, RuntimeError),
        ({"NVRX_INFRA_RANK_FROM_NODENAME": "1"}, ValueError),
        (NAMED | {"SLURMD_NODENAME": "login"}, ValueError),
        (BLOCK | {"SLURM_TOPOLOGY_ADDR": "node3"}, ValueError),
        (BLOCK | {"SLURM_TOPOLOGY_ADDR": "block.node"}, ValueError),
        (BLOCK | {"SLURM_TOPOLOGY_ADDR": "block1.node10000000000"}, ValueError),
    ],
)
def test_infrastructure_rank_errors(environ, values, error):
    environ(values)
    with pytest.raises(error):
        utils.get_infrastructure_rank()


def test_nodes_share_the_servers_of_logs(environ):
    found = []
    for number in range(300):
        environ({"SLURMD_NODENAME": f"node{number}"})
        found.append(utils.get_log_aggregator_shard_index(4))
    assert all(found.count(index) > 50 for index in range(4))
    assert utils.get_log_aggregator_shard_index(1) == 0
    with pytest.raises(ValueError, match="num_shards is 0"):
        utils.get_log_aggregator_shard_index(0)


def test_ranks(environ):
    assert utils.get_rank() is None
    assert not utils.is_slurm_job_array()
    environ({"RANK": "4", "SLURM_ARRAY_TASK_ID": "0"})
    assert utils.get_rank() == 4
    assert utils.is_slurm_job_array()
    assert utils.format_ranks([0, 1, 2, 7]) == "0-2,7"


# --- processes ------------------------------------------------------------------------------------


def test_processes_that_have_ended():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert utils.is_process_alive(child.pid)
        with pytest.raises(TimeoutError, match=f"process {child.pid} still runs after 0.01 s"):
            utils.wait_until_process_terminated(child.pid, 0.01)
        child.kill()
        utils.wait_until_process_terminated(child.pid, 60)
        assert not utils.is_process_alive(child.pid), "a zombie has ended"
    utils.wait_until_process_terminated(child.pid)


def test_events():
    is_set, other = threading.Event(), threading.Event()
    is_set.set()
    utils.wait_for_mp_events([is_set], timeout=0)
    with pytest.raises(RuntimeError, match="not all events were set"):
        utils.wait_for_mp_events([is_set, other], timeout=0.01)


def test_an_exception_ends_the_process():
    code = (
        "import atexit, threading\n"
        "from nvidia_resiliency_ext.fault_tolerance.utils import install_exception_handler\n"
        "install_exception_handler()\n"
        "threading.Thread(target=threading.Event().wait).start()\n"  # would keep it from ending
        "print('begun')\n"
        "raise ValueError('bad batch')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout) == (1, "begun\n")
    assert "ValueError: bad batch" in result.stderr


def test_patched_method():
    class Thing:
        def name(self):
            return "old"

    thing = Thing()
    with utils.patched_method(thing, "name", lambda: "new"):
        assert thing.name() == "new"
        with utils.patched_method(thing, "name", lambda: "newer"):
            assert thing.name() == "newer"
        assert thing.name() == "new"
    assert thing.name() == "old"
    assert "name" not in vars(thing)


# --- messages -------------------------------------------------------------------------------------


def test_messages_on_sockets():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        utils.write_object_to_ipc_socket({"a": [1]}, ours)
        assert utils.read_obj_from_ipc_socket(theirs) == {"a": [1]}
        utils.set_ipc_socket_timeouts(theirs.fileno(), 0.01)
        assert utils.read_obj_from_ipc_socket(theirs) is None, "nothing comes"
        ours.sendall(b"\x00\x00\x00\x02{x")
        with pytest.raises(ValueError, match="not a message"):
            utils.read_obj_from_ipc_socket(theirs, raise_exc=True)
        ours.sendall(b"12")
        ours.shutdown(socket.SHUT_WR)
        assert utils.recv_all(theirs, 3) == b"12"
        with pytest.raises(EOFError):
            utils.read_obj_from_ipc_socket(theirs, raise_exc=True)


def test_messages_on_streams():
    async def talk():
        ours, theirs = socket.socketpair()
        reader, other = await asyncio.open_connection(sock=theirs)
        _, writer = await asyncio.open_connection(sock=ours)
        await utils.write_obj_to_ipc_stream(["x", None], writer)
        found = await utils.read_obj_from_ipc_stream(reader)
        for stream in (writer, other):
            stream.close()
            await stream.wait_closed()
        return found

    assert asyncio.run(talk()) == ["x", None]


# --- tools ----------------------------------------------------------------------------------------


def test_waiting_for_processes(tmp_path):
    with pytest.raises(SystemExit) as left:
        wait_daemon.wait_daemon(str(tmp_path / "none"))
    assert left.value.code == 1
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    (tmp_path / "pids").write_text(f"{child.pid}\nnot a pid\n")
    assert wait_daemon.read_pids_from_file(str(tmp_path / "pids")) == [child.pid]
    wait_daemon.wait_daemon(str(tmp_path / "pids"))
    assert child.wait(0) == 0
    module = [sys.executable, "-m", "nvidia_resiliency_ext.shared_utils.wait_daemon"]
    assert subprocess.run([*module, str(tmp_path / "pids")], timeout=60).returncode == 0


def test_the_log_aggregator_is_a_program():
    module = "nvidia_resiliency_ext.shared_utils.log_aggregator"
    result = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0
    assert "--log-dir" in result.stdout or "directory" in result.stdout


def test_profiling(caplog):
    from nvidia_resiliency_ext.shared_utils.profiling import (
        FaultToleranceProfiler,
        ProfilingEvent,
    )

    record = FaultToleranceProfiler().record_event(ProfilingEvent.FAILURE_DETECTED, "node", 3)
    assert (record.cycle, record.node, record.rank) == (1, "node", 3)


def test_names_of_faults():
    names = "GPU_ERROR GPU_SLEEP WORKLOAD_EXC ASYNC_EXC SIGNAL_EXC OS_ABORT LOCK_GIL SEGFAULT"
    assert [fault.name for fault in Fault] == f"{names} SIGINT SIGKILL SIGTERM SIGSTOP".split()
