from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.doctor.probe.tree import write_tree
from undaunted.doctor import probes as kernel
from undaunted.doctor.checks import judge
from undaunted.doctor.facts import Asked, Facts
from undaunted.doctor.known_issues import known_issues

if TYPE_CHECKING:
    from pathlib import Path


def test_this_machine() -> None:
    facts = Facts(**kernel.of_kernel())
    assert facts.versions.keys() == {"linux", "python"}
    assert facts.cpus
    assert facts.memory
    assert facts.limits["nofile"].soft is None or facts.limits["nofile"].soft > 0
    assert facts.capabilities is not None
    assert "net.ipv4.ip_local_port_range" in facts.settings


def test_files_of_another_machine(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:  1024 kB\nMemFree: 1 kB\n",
            "proc/self/status": "Name:\tcat\nCapEff:\t0000000000080000\n",
            "proc/self/oom_score_adj": "-17\n",
            "proc/sys/vm/overcommit_memory": "2\n",
            "sys/class/infiniband/mlx5_1/x": "",
            "sys/class/infiniband/mlx5_0/x": "",
            "run/.containerenv": "",
        },
    )
    facts = Facts(**kernel.of_kernel(root))
    assert facts.memory == 2**20
    assert facts.capabilities == 1 << 19
    assert facts.oom_score_adj == -17
    assert facts.settings == {"vm.overcommit_memory": "2"}
    assert facts.rdma == ("mlx5_0", "mlx5_1")
    assert facts.in_container


@pytest.mark.parametrize("content", ["", "\0\xff\n" * 9, "CapEff: x", "MemTotal: -1 kB", "nan"])
def test_garbage_and_nothing(tmp_path: Path, content: str) -> None:
    names = ("meminfo", "self/status", "self/oom_score_adj", "sys/vm/overcommit_memory")
    for root in (tmp_path, write_tree(tmp_path, {f"proc/{name}": content for name in names})):
        facts = Facts(**kernel.of_kernel(root))
        assert (facts.memory, facts.capabilities, facts.oom_score_adj) == (None, None, None)
        assert not [f for f in judge(facts, Asked(), known_issues()) if f.id == "D01"]


def test_a_file_that_is_a_directory_or_endless(tmp_path: Path) -> None:
    assert kernel.read_text(tmp_path) is None
    endless = kernel.read_text(tmp_path / "none")
    assert endless is None
    large = write_tree(tmp_path, {"large": b"x" * 10**6}) / "large"
    assert len(kernel.read_text(large) or "") < 10**6


def test_only_known_variables_are_kept() -> None:
    environ = {"NCCL_DEBUG": "WARN", "MASTER_PORT": "29500", "API_KEY": "secret"}
    found = kernel.environ_of(environ, ["NCCL_DEBUG"])
    assert found == {"NCCL_DEBUG": "WARN", "MASTER_PORT": "29500"}


def test_remove_ipc(tmp_path: Path) -> None:
    assert kernel.settings(tmp_path, 1000) == {}
    (tmp_path / "run/systemd/users").mkdir(parents=True)
    assert kernel.settings(tmp_path, 1000) == {"RemoveIPC": "yes"}
    assert kernel.settings(tmp_path, 0) == {}  # logind leaves system users alone
    write_tree(tmp_path, {"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\nRemoveIPC = no\n"})
    assert kernel.settings(tmp_path, 1000) == {"RemoveIPC": "no"}
    write_tree(tmp_path, {"etc/systemd/logind.conf.d/9.conf": "RemoveIPC=yes\n"})
    assert kernel.settings(tmp_path, 1000) == {"RemoveIPC": "yes"}


def test_pods_are_containers(tmp_path: Path) -> None:
    assert not kernel.in_container(tmp_path, {})
    assert kernel.in_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
