"""--coordinator-store: what is accepted, and what it means."""

from __future__ import annotations

import importlib.util
import socket

import pytest

from undaunted.cli import nodes, run
from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN

STORE = ("--coordinator-store", "etcd://127.0.0.1:2379")


@pytest.fixture
def build(tmp_path):
    (tmp_path / "train.py").touch()

    def build(*argv, **environ):
        words = [*STORE, "--nnodes", "2", "--rdzv-id", "job", *argv, "train.py"]
        return run.build_config(RUN.parse(words, environ), environ, str(tmp_path))[0]

    return build


def test_no_endpoint_is_needed(build):
    found = build().nodes
    assert (found.store, found.endpoints, found.is_host) == ("etcd://127.0.0.1:2379", [], False)
    assert found.address == "127.0.0.1"


def test_an_endpoint_says_where_to_listen(build):
    found = build("--rdzv-endpoint", "no-such-host.invalid:29400").nodes
    assert (found.endpoints, found.address) == (["no-such-host.invalid:29400"], "127.0.0.1")


def test_the_host_of_an_endpoint_may_serve_logs(build):
    assert build("--rdzv-endpoint", "127.0.0.1:29400").nodes.is_host


def test_names_of_etcd_may_not_be_known_yet(build, monkeypatch):
    def unknown(host, *about, **more):
        if host == "127.0.0.1":
            return real(host, *about, **more)
        raise socket.gaierror(socket.EAI_AGAIN, "not known yet")

    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert not build("--coordinator-store", "etcd://e1,e2").nodes.address
    assert build("--coordinator-store", "etcd://e1,127.0.0.1").nodes.address == "127.0.0.1"


def test_without_it_nothing_changes(build):
    assert build("--coordinator-store", "", "--rdzv-endpoint", "127.0.0.1").nodes.store == ""


def test_a_slurm_job_has_a_name(build):
    assert build("--rdzv-id", "", SLURM_JOB_ID="7", SLURM_PROCID="1").run_id == "slurm-7"


def test_the_package_is_an_extra(build, monkeypatch):
    monkeypatch.setattr(nodes, "find_spec", lambda name: importlib.util.find_spec(f"no_{name}"))
    with pytest.raises(UsageError, match=r"pip install 'undaunted\[etcd\]'"):
        build()
