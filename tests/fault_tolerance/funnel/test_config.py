from __future__ import annotations

import pytest

from undaunted.fault_tolerance.funnel.config import FunnelConfig, leaf_count, queue_bytes
from undaunted.fault_tolerance.funnel.messages import WINDOW_BYTES, window


def test_without_leaves_all_go_to_one_port():
    config = FunnelConfig(root="/logs", port=7)
    assert config.entrances("host", "n1") == ["host:7"]
    assert config.ports() == [7]


def test_leaves_are_shared_by_the_nodes():
    config = FunnelConfig(root="/logs", port=7, leaves=3)
    assert config.ports() == [7, 8, 9, 10]
    entrances = [config.entrances("host", f"n{number}") for number in range(300)]
    assert all(sorted(each) == ["host:7", "host:8", "host:9"] for each in entrances)
    firsts = [each[0] for each in entrances]
    assert all(firsts.count(f"host:{port}") > 50 for port in (7, 8, 9))


def test_paths_are_told_from_the_directory_on():
    config = FunnelConfig(root="/logs")
    assert config.relative("/logs/a/train.log") == "a/train.log"
    with pytest.raises(ValueError, match="/logs"):
        config.relative("/other/train.log")


@pytest.mark.parametrize(
    ("wanted", "nodes", "leaves"), [(0, 1536, 0), (0, 1537, 2), (0, 4000, 3), (5, 2, 5)]
)
def test_number_of_leaves(wanted, nodes, leaves):
    assert leaf_count(wanted, nodes) == leaves


def test_bounds():
    assert queue_bytes(-1) == 256 << 20
    assert queue_bytes(1) == 16 << 20
    assert queue_bytes(1024) == 64 << 20
    assert window(256 << 20, 4) == WINDOW_BYTES
    assert window(256 << 20, 1024) == 256 << 10
    assert window(256 << 20, 100_000) == 64 << 10
