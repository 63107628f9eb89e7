from __future__ import annotations

import pytest

from undaunted.cli.log_server_options import log_server
from undaunted.cli.parse import parse
from undaunted.fault_tolerance.funnel.config import FunnelConfig
from undaunted.fault_tolerance.nodes_config import Nodes

NODES = Nodes(min_nodes=2, max_nodes=2, endpoints=["h:1"], is_host=True, address="127.0.0.1")
ON = "--ft-enable-log-server"


def chosen(line: str, *, nodes: Nodes | None = NODES, prefix: str = "/l/t.log", log: str = ""):
    return log_server(parse([*line.split(), "train.py"], {}), nodes, prefix, log)


def test_direct_append_is_the_default():
    assert chosen("") is None
    assert chosen("--ft-enable-log-server false --ft-log-server-port 50051") is None


def test_one_node_needs_none():
    assert chosen(ON, nodes=None) is None


def test_what_is_chosen():
    assert chosen(ON, log="/l/launchers/x.log") == FunnelConfig(root="/l")
    line = (
        f"{ON} --ft-log-server-port 7 --ft-log-aggregator-count 2 --ft-log-server-log-prefix /p/s "
        "--ft-log-leaf-max-queue-chunks 1024 --ft-log-server-graceful-shutdown-timeout 9"
    )
    wanted = {"port": 7, "leaves": 2, "log_prefix": "/p/s", "queue_bytes": 64 << 20, "grace_s": 9.0}
    assert chosen(line) == FunnelConfig(root="/l", **wanted)


@pytest.mark.parametrize(
    ("line", "paths", "message"),
    [
        (ON, {"prefix": ""}, "name them with --ft-per-cycle-applog-prefix"),
        (ON, {"log": "/elsewhere/x.log"}, "/elsewhere/x.log must be there as well"),
        (
            f"{ON} --ft-log-server-port 65535 --ft-log-aggregator-count 1",
            {},
            "give a port from 1 to 65534",
        ),
    ],
)
def test_what_cannot_be_meant(line, paths, message):
    with pytest.raises(ValueError, match=message):
        chosen(line, **paths)
