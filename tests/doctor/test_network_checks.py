from __future__ import annotations

from typing import Any

import pytest

from tests.doctor.saying import said, wanting
from undaunted.doctor.checks import network
from undaunted.doctor.facts import Asked, Names, Remote


def test_own_name() -> None:
    def found(asked: Asked, *addresses: str, **more: Any) -> list[tuple[str, str, str]]:
        return said(network, asked, names=Names(host="n1", addresses=addresses, **more))

    several = wanting(nnodes=2)
    assert found(several, "127.0.1.1")[0][:2] == ("L15", "warn")
    assert found(Asked(), "127.0.1.1")[0][:2] == ("L15", "info")
    assert found(several, "10.0.0.5", local=("127.0.0.1", "10.0.0.5")) == []
    assert found(several, "127.0.1.1", "10.0.0.5", local=("10.0.0.5",)) == []
    ((_, severity, text),) = found(several, "10.0.0.9", local=("10.0.0.5",))
    assert severity == "warn"
    assert text == "own name n1 leads to 10.0.0.9, which is not this host"
    assert found(several, problem="the name server has not answered within 5.0 s")[0][1] == "warn"
    assert found(several) == []
    assert found(several, "garbage%eth0", local=("10.0.0.5",))[0][0] == "L15"


def test_addresses_that_the_kernel_does_not_have() -> None:
    names = Names(host="n1", addresses=("10.0.0.5", "fd00::5"), ipv6=False)
    assert [row[0] for row in said(network, names=names)] == ["L16"]
    both = Names(host="n1", addresses=("10.0.0.5", "fd00::5"), ipv6=True)
    assert said(network, names=both) == []


@pytest.mark.parametrize("text", ["32768\t60999", "32768 60999"])
def test_ports(text: str) -> None:
    settings = {"net.ipv4.ip_local_port_range": text}
    found = said(network, wanting(port=40000), settings=settings, environ={"MASTER_PORT": "50000"})
    assert [row[2] for row in found] == [
        "the port of the rendezvous is 40000",
        "MASTER_PORT is 50000",
    ]
    assert said(network, wanting(port=29400), settings=settings) == []


@pytest.mark.parametrize("text", ["", "x y", "1", "1 2 3", "\0"])
def test_ranges_of_ports_that_cannot_be_read(text: str) -> None:
    assert said(network, wanting(port=40000), settings={"net.ipv4.ip_local_port_range": text}) == []


def test_queue_of_connections() -> None:
    settings = {"net.core.somaxconn": "128"}
    ((key, _, text),) = said(network, wanting(nnodes=32, nproc_per_node=8), settings=settings)
    assert (key, text) == ("L14", "net.core.somaxconn is 128, with 256 ranks")
    assert said(network, wanting(nnodes=2, nproc_per_node=8), settings=settings) == []


def test_hosts() -> None:
    remotes = (
        Remote(host="n2", answer="refused"),
        Remote(host="n3", problem="the name cannot be resolved: Name or service not known"),
    )
    ((key, severity, text),) = said(network, remotes=remotes)
    assert (key, severity) == ("N01", "fail")
    assert text.startswith("n3: the name")


def test_where_ranks_will_meet() -> None:
    unknown = Remote(host="n0", port=29400, problem="the name cannot be resolved: ...")
    taken = Remote(host="n0", port=29400, answer="open")
    free = Remote(host="n0", port=29400, answer="refused")
    found = said(network, stores={"--rdzv-endpoint": unknown, "MASTER_ADDR": unknown})
    assert found == [
        ("N03", "fail", "--rdzv-endpoint: n0: the name cannot be resolved: ..."),
        ("N03", "warn", "MASTER_ADDR: n0: the name cannot be resolved: ..."),
    ]
    assert said(network, stores={"--rdzv-endpoint": taken}) == [
        ("N03", "warn", "--rdzv-endpoint: n0: somebody listens at port 29400 already")
    ]
    assert said(network, stores={"--rdzv-endpoint": free, "MASTER_ADDR": Remote(host="n0")}) == []


def test_a_loopback_interface_that_is_down() -> None:
    names = Names(loopback="Network is unreachable")
    assert said(network, names=names) == [
        ("N04", "fail", "127.0.0.1 cannot be connected to: Network is unreachable")
    ]


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", ""),
        ("GLOO_SOCKET_IFNAME", "lo,eth0", ""),
        ("GLOO_SOCKET_IFNAME", "", ""),
        ("GLOO_SOCKET_IFNAME", "^lo", ""),  # E20 says that
        ("GLOO_SOCKET_IFNAME", "eth", "fail"),
        ("GLOO_SOCKET_IFNAME", "lo,ib0", "fail"),
        ("NCCL_SOCKET_IFNAME", "eth", ""),
        ("NCCL_SOCKET_IFNAME", "=eth0:9000", ""),
        ("NCCL_SOCKET_IFNAME", "ib,eth", ""),
        ("NCCL_SOCKET_IFNAME", "^docker", ""),
        ("NCCL_SOCKET_IFNAME", "=eth", "warn"),
        ("NCCL_SOCKET_IFNAME", "ib,bond", "warn"),
    ],
)
def test_interfaces_that_are_named(name: str, value: str, severity: str) -> None:
    names = Names(interfaces=("lo", "eth0"))
    found = said(network, names=names, environ={name: value})
    assert [row[:2] for row in found] == ([("E28", severity)] if severity else [])
    assert said(network, environ={name: value}) == [], "nobody knows what there is"


def test_the_interface_that_is_missing_is_named() -> None:
    names = Names(interfaces=("lo", "eth0"))
    (row,) = said(network, names=names, environ={"GLOO_SOCKET_IFNAME": "lo,ib0"})
    assert row[2] == "GLOO_SOCKET_IFNAME=lo,ib0: there is no ib0 here"
