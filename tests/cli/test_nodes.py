import errno
import os
import socket
import threading

import pytest

from undaunted.cli import nodes, run
from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN
from undaunted.coordinator.wire import address
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.output.server.config import LogServerConfig

SEVERAL = "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE"


@pytest.fixture
def build(tmp_path):
    (tmp_path / "train.py").touch()

    def build(*argv, **environ):
        words = ["--rdzv-endpoint", "127.0.0.1:29400", *argv, "train.py"]
        return run.build_config(RUN.parse(words, environ), environ, str(tmp_path))[0]

    return build


def test_nodes_of_a_job(build):
    config = build("--nnodes", "2:3", "--rdzv-conf", "lease=2,join_timeout=1m,is_host=0")
    found = config.nodes
    assert (found.min_nodes, found.max_nodes, found.endpoints) == (2, 3, ["127.0.0.1:29400"])
    assert (found.lease_s, found.join_timeout_s, found.is_host) == (2, 60, False)
    assert found.beside_host
    assert not build("--nnodes", "2").nodes.beside_host
    assert (found.address, found.infra_rank) == ("127.0.0.1", None)
    assert config.run_id == "none"


def test_places_in_a_slurm_job(build):
    slurm = {"SLURM_JOB_ID": "17", "SLURM_PROCID": "1", "SLURMD_NODENAME": "n2"}
    config = build("--nnodes", "2", **slurm, SLURM_TASKS_PER_NODE="1(x2)")
    assert (config.run_id, config.node, config.nodes.infra_rank) == ("slurm-17", "n2", 1)


def test_the_place_that_is_given(build):
    slurm = {"SLURM_JOB_ID": "17", "SLURM_PROCID": "1", "SLURMD_NODENAME": "n2"}

    def place(given, **more):
        return build("--nnodes", "2", "--node-rank", given, **slurm, **more).nodes.infra_rank

    assert place("0") == 0
    assert place("0", SLURM_NODEID="0") == 0
    assert place("3", SLURM_NODEID="1") == 3
    # NeMo-Run's batch scripts have --node-rank $SLURM_NODEID behind srun.
    assert place("0", SLURM_NODEID="1") == 1


@pytest.mark.parametrize("tasks", ["8(x2)", "1,2", "1(x3),2"])
def test_several_launchers_on_a_node_must_be_meant(build, tasks):
    slurm = {"SLURM_PROCID": "1", "SLURMD_NODENAME": "n1", "SLURM_LOCALID": "1"}
    slurm["SLURM_STEP_ID"] = "0"
    with pytest.raises(UsageError, match=r"--ntasks-per-node=1, or set NVRX_ENABLE_MULTI"):
        build("--nnodes", "2", **slurm, SLURM_TASKS_PER_NODE=tasks)
    config = build("--nnodes", "2", **slurm, SLURM_TASKS_PER_NODE=tasks, **{SEVERAL: "1"})
    assert config.node == "n1-1"


@pytest.mark.parametrize("tasks", ["", "1", "1(x128)", "1,1(x3)"])
def test_one_launcher_on_each_node(tasks):
    environ = {"SLURM_TASKS_PER_NODE": tasks, "SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "0"}
    assert nodes.launcher_name(environ) == "n1"


@pytest.mark.parametrize("step", ["", "4294967290"])
def test_tasks_of_a_job_are_no_launchers_until_srun_starts_them(step):
    environ = {"SLURM_TASKS_PER_NODE": "2(x2)", "SLURMD_NODENAME": "n1", "SLURM_STEP_ID": step}
    assert nodes.launcher_name(environ) == "n1"


BATCH = {
    "SLURM_JOB_ID": "17",
    "SLURM_PROCID": "0",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
}
TASK = BATCH | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
TWO = ("--nnodes", "2", "--rdzv-endpoint")


@pytest.fixture
def elsewhere(monkeypatch):
    """No name is looked up, and none is this machine's."""
    monkeypatch.setattr(nodes, "is_here", lambda _host: False)
    monkeypatch.setattr(nodes, "first_own_address", lambda _endpoints: "")


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        ((), BATCH, "2 nodes (n[1-2]), but srun did not start this launcher"),
        ((*TWO, "n1:29400"), BATCH, "2 nodes (n[1-2]), but srun did not start this launcher"),
        ((), TASK, "srun starts 2 launchers, and each of them runs the whole job alone"),
        ((*TWO, "login1:29400"), TASK, "login1 of --rdzv-endpoint is no node of this job (n[1-2])"),
        ((*TWO, "n10:29400"), TASK, "n10 of --rdzv-endpoint is no node of this job"),
        ((*TWO, "localhost:29400"), TASK, "localhost of --rdzv-endpoint is no node of this job"),
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_a_slip_in_a_job_of_slurm_is_named_with_the_remedy(tmp_path, argv, environ, words):
    (tmp_path / "train.py").touch()
    _, notice = run.build_config(RUN.parse([*argv, "train.py"], environ), environ, str(tmp_path))
    assert words in notice
    assert "undaunted srun" in notice
    assert len(notice.splitlines()) == 2  # one slip


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        ((), {}),
        ((), BATCH | {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1"}),
        ((), TASK | {"SLURM_PROCID": "1"}),  # the first one has told it
        ((), TASK | {"SLURM_STEP_NUM_TASKS": "1"}),
        ((*TWO, "n1:29400"), TASK),
        ((*TWO, "n2.cluster.example:29400"), TASK),
        ((*TWO, "n1-ib:29400"), TASK),
        ((*TWO, "10.0.0.7:29400"), TASK),
        ((*TWO, "login1:29400"), TASK | {"SLURM_JOB_NUM_NODES": "1"}),  # a task of an array
        ((*TWO, "n1:29400"), TASK | {"SLURM_JOB_NODELIST": "n[x"}),
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_what_may_be_meant_is_not_commented_on(tmp_path, argv, environ):
    (tmp_path / "train.py").touch()
    _, notice = run.build_config(RUN.parse([*argv, "train.py"], environ), environ, str(tmp_path))
    assert notice == ""


def test_one_cpu_for_all_ranks_of_a_job_of_slurm(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    (tmp_path / "train.py").touch()
    parsed = RUN.parse(["--nproc-per-node", "4", "train.py"], {})
    alone = TASK | {"SLURM_STEP_NUM_TASKS": "1"}
    assert "its 4 ranks share one CPU" in run.build_config(parsed, alone, str(tmp_path))[1]
    assert run.build_config(parsed, {}, str(tmp_path))[1] == ""


def test_a_job_on_one_node_may_share_it_with_others(tmp_path):
    (tmp_path / "train.py").touch()
    environ = {"SLURM_TASKS_PER_NODE": "8", "SLURMD_NODENAME": "n1"}
    config, _ = run.build_config(RUN.parse(["train.py"], environ), environ, str(tmp_path))
    assert config.node == "n1"


def test_faults_may_be_for_ranks_of_other_nodes(build):
    assert "rank=3" in build("--nnodes", "2", "--inject-fault", "sigkill:rank=3").faults


def test_whose_host_an_endpoint_names():
    assert nodes.is_here("localhost")
    assert nodes.is_here(os.uname().nodename)
    assert nodes.is_here("[::1]")
    assert not nodes.is_here("192.0.2.1")


def test_no_name_is_asked_for_where_the_endpoint_is_a_number(monkeypatch):
    def asked(*_):
        raise AssertionError("the name service may be dead")

    for name in ("getfqdn", "gethostbyaddr", "gethostbyname"):
        monkeypatch.setattr(socket, name, asked)
    assert nodes.is_here("127.0.0.1")
    assert not nodes.is_here("192.0.2.1")


@pytest.mark.parametrize("code", ["EAI_NONAME", "EAI_AGAIN", "EAI_NODATA", "EAI_FAIL"])
@pytest.mark.parametrize("endpoint", ["train-0.train:29400", "train-0.train", "no_such.host.:7"])
def test_a_name_that_is_not_known_yet_is_waited_for(build, monkeypatch, code, endpoint):
    def unknown(*_, **__):
        raise socket.gaierror(getattr(socket, code), "not known yet")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    found = build("--nnodes", "2", "--rdzv-endpoint", endpoint).nodes
    assert (found.address, found.is_host) == ("", None)
    given = build("--nnodes", "2", "--rdzv-endpoint", endpoint, "--rdzv-conf", "is_host=0").nodes
    assert given.is_host is False
    environ = {"PET_RDZV_ENDPOINT": endpoint, "PET_NNODES": "2"}
    parsed = RUN.parse(["train.py"], environ)
    assert nodes.nodes(parsed, environ, "n1").is_host is None


@pytest.mark.parametrize("code", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL])
@pytest.mark.parametrize("endpoint", ["localhost:29400", "192.0.2.7:29400"])
def test_a_route_that_is_not_there_yet_is_waited_for(build, monkeypatch, code, endpoint):
    """The name service still has the address of an earlier machine, or the network is not up."""

    def no_route(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(address, "own_address", no_route)
    assert build("--nnodes", "2", "--rdzv-endpoint", endpoint).nodes.address == ""


def test_a_name_service_that_does_not_answer_is_waited_for(build, monkeypatch):
    released, real = threading.Event(), socket.getaddrinfo

    def hanging(host, *about, **more):
        return released.wait(60) if host == "node0" else real(host, *about, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    monkeypatch.setattr(address, "LOOK_UP_S", 0.01)
    found = build("--nnodes", "2", "--rdzv-endpoint", "node0:29400").nodes
    released.set()
    assert (found.address, found.is_host) == ("", None)


def test_the_name_of_a_pod_is_its_own_before_the_name_service_knows_it(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "not known yet")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-0.train.ns.svc.cluster.local")
    assert nodes.is_here("train-0.train")
    assert nodes.is_here("train-1.train") is None
    assert nodes.is_here("train-0.tra") is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("127.0.0.1", "127.0.0.1:29400"),
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("::1", "[::1]:29400"),
        ("[::1]:7", "[::1]:7"),
    ],
)
def test_endpoints(build, given, meant):
    if ":1" in given.strip("[]")[:4] and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    config = build("--nnodes", "2", "--rdzv-endpoint", given, "--local-addr", "127.0.0.1")
    assert config.nodes.endpoints == [meant]


def test_an_address_of_this_node_that_nobody_knows(build):
    with pytest.raises(UsageError) as caught:
        build("--nnodes", "2", "--local-addr", "nosuch.invalid")
    assert str(caught.value).startswith("--local-addr nosuch.invalid: ")
    assert "give an address of this node" in str(caught.value)
    with pytest.raises(UsageError, match="--local-addr"):
        build("--nnodes", "2", "--local-addr", "x" * 70)


NODES = Nodes(min_nodes=2, max_nodes=2, endpoints=["h:1"], is_host=True, address="127.0.0.1")
ON = "--ft-enable-log-server"


def log_server(line: str, *, job: Nodes | None = NODES, prefix: str = "/l/t.log", log: str = ""):
    words = [f"--ft-per-cycle-applog-prefix={prefix}", *line.split(), "train.py"]
    return nodes.log_server(RUN.parse(words, {}), job, log)


def test_no_log_server_by_default():
    assert log_server("") is None
    assert log_server("--ft-enable-log-server false --ft-log-server-port 50051") is None


def test_one_node_needs_no_log_server():
    assert log_server(ON, job=None) is None


def test_what_is_log_server():
    assert log_server(ON, log="/l/launchers/x.log") == LogServerConfig(root="/l")
    line = (
        f"{ON} --ft-log-server-port 7 --ft-log-aggregator-count 2 --ft-log-server-log-prefix /p/s "
        "--ft-log-leaf-max-queue-chunks 1024 --ft-log-server-graceful-shutdown-timeout 9"
    )
    wanted = {"port": 7, "log_prefix": "/p/s", "grace_s": 9.0}
    assert log_server(line) == LogServerConfig(root="/l", **wanted)
