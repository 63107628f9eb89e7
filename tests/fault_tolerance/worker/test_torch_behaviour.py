"""What torch programs do in forked and in fresh workers, and under plain ``python -u``."""

from __future__ import annotations

import socket
from textwrap import dedent

import pytest

from .cases import Case
from .harness import ENVIRONMENT, AgentProcess
from .test_behaviour import run_ours, run_plain

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

COMPUTES = """
    import multiprocessing, os, random, sys, threading
    import numpy, torch
    import torch.multiprocessing as mp
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        def __len__(self): return 4
        def __getitem__(self, i): return torch.tensor(i)

    def spawned(rank, factor): print("spawned", rank, factor, __name__, flush=True)

    if __name__ == "__main__":
        threads = len(os.listdir("/proc/self/task"))
        print(torch.get_num_threads(), threads)
        torch.set_num_threads(2)
        x = torch.ones(300, 300, requires_grad=True)
        (x @ x).relu().sum().backward()
        print(torch.get_num_threads(), x.grad.sum(), torch.is_grad_enabled())
        thread = threading.Thread(target=lambda: print((x @ x).sum()))
        thread.start()
        thread.join()
        a = numpy.ones((200, 200))
        print((a @ a).sum(), numpy.random.RandomState(1).rand())
        for method, workers in (("fork", 2), ("spawn", 1)):
            loader = DataLoader(Numbers(), num_workers=workers, multiprocessing_context=method)
            print(method, [int(batch) for batch in loader], flush=True)
        mp.spawn(spawned, args=(3,), nprocs=1)
        print(torch.cuda.is_initialized(), multiprocessing.active_children())
        model = torch.nn.Linear(2, 2)
        print(torch.compiler.is_compiling(), torch.utils.checkpoint.checkpoint(
            model, torch.ones(1, 2), use_reentrant=False).sum().backward())
        raise ValueError("end")
"""

GLOO = """
    import datetime, sys
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.full((1, 2), float(dist.get_rank() + 1))).sum().backward()
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    print(dist.get_world_size(), int(total), model.module.weight.grad)
    # Before the group goes: a model that outlives it may end the process in std::terminate.
    del model
    dist.barrier()
    dist.destroy_process_group()
"""

RANDOM = """
    import random, secrets, sys, uuid, multiprocessing, tempfile
    import numpy, torch
    key = bytes(multiprocessing.current_process().authkey).hex()
    numbers = random.random(), numpy.random.rand(), torch.rand(1), torch.initial_seed()
    print(*numbers, uuid.uuid4(), key, tempfile.mktemp(), sep="\\n")
"""

THREADS = """
    import os, re, sys
    import numpy, torch
    import threadpoolctl
    print(torch.get_num_threads(), sorted((i["user_api"], i["num_threads"])
                                          for i in threadpoolctl.threadpool_info()))
"""


@pytest.fixture(scope="module", params=["warm", pytest.param("fresh", marks=pytest.mark.slow)])
def agent(request):
    agent = AgentProcess(warm=request.param == "warm", modules=["torch", "numpy"])
    yield agent
    agent.close()


def write(tmp_path, text):
    work = tmp_path / "work"
    work.mkdir()
    (work / "main.py").write_text(dedent(text))
    return work


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The program's directory, and what it does under plain Python."""
    tmp_path = tmp_path_factory.mktemp("plain")
    work = write(tmp_path, COMPUTES)
    return work, run_plain(Case("torch"), work, tmp_path)


def test_computes_as_under_plain_python(agent, plain, tmp_path):
    work, expected = plain
    ours = run_ours(Case("torch"), agent, work, tmp_path)
    assert ours.stderr.decode() == expected.stderr.decode()
    assert ours.stdout.decode() == expected.stdout.decode()
    assert ours.code == expected.code == 1


def test_number_of_blas_threads(agent, tmp_path):
    pytest.importorskip("threadpoolctl")
    case = Case("threads", env={"OPENBLAS_NUM_THREADS": "2"})
    work = write(tmp_path, THREADS)
    plain = run_plain(case, work, tmp_path)
    ours = run_ours(case, agent, work, tmp_path)
    assert ours == plain


def test_number_of_threads_by_default(tmp_path):
    pytest.importorskip("threadpoolctl")
    env = {name: value for name, value in ENVIRONMENT.items() if name != "OMP_NUM_THREADS"}
    agent = AgentProcess(warm=True, modules=["torch"], env=env)
    work = write(tmp_path, THREADS)
    try:
        ours = run_ours(Case("threads"), agent, work, tmp_path)
    finally:
        agent.close()
    assert ours == run_plain(Case("threads"), work, tmp_path, env)


def run_ranks(agent, tmp_path, text, env):
    work = write(tmp_path, text)
    answer = agent.run(
        [
            {
                "target": "main.py",
                "cwd": str(work),
                "env": {**agent.env, **env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                "stdout": str(tmp_path / f"out{rank}"),
                "stderr": str(tmp_path / f"err{rank}"),
            }
            for rank in (0, 1)
        ]
    )
    assert [(tmp_path / f"err{rank}").read_text() for rank in (0, 1)] == ["", ""]
    assert answer["codes"] == [0, 0]
    return [(tmp_path / f"out{rank}").read_text() for rank in (0, 1)]


def test_gloo(agent, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    said = run_ranks(agent, tmp_path, GLOO, env)
    # Before it stands what gloo prints in old versions.
    assert [one.splitlines()[-1] for one in said] == ["2 3 tensor([[1.5000, 1.5000]])"] * 2


def test_random_numbers_differ(agent, tmp_path):
    first, second = run_ranks(agent, tmp_path, RANDOM, {})
    pairs = list(zip(first.splitlines(), second.splitlines(), strict=True))
    assert len(pairs) == 7
    assert all(a != b for a, b in pairs)
