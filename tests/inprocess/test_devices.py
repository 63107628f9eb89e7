from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.inprocess.devices import nearest_nics, visible_device

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("visible", "device"),
    [(None, "2"), ("4,5,6", "6"), ("GPU-a, GPU-b ,GPU-c", "GPU-c"), ("7", "7"), ("", None)],
)
def test_the_third_rank_of_a_node(visible: str | None, device: str | None) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_device(2, environ) == device


def test_fewer_devices_than_ranks() -> None:
    assert visible_device(2, {"CUDA_VISIBLE_DEVICES": "0,1"}) is None


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Two switches, each with a GPU and a card."""
    for switch in (1, 2):
        bridge = tmp_path / f"sys/devices/pci0000:00/0000:0{switch}:00.0"
        (bridge / f"0000:{switch}A:00.0").mkdir(parents=True)
        (bridge / f"0000:{switch}b:00.0").mkdir()
        (tmp_path / f"proc/driver/nvidia/gpus/0000:{switch}B:00.0").mkdir(parents=True)
        gpu = tmp_path / f"sys/bus/pci/devices/0000:{switch}b:00.0"
        gpu.parent.mkdir(parents=True, exist_ok=True)
        gpu.symlink_to(bridge / f"0000:{switch}b:00.0")
        nic = tmp_path / f"sys/class/infiniband/mlx5_{switch}"
        nic.mkdir(parents=True)
        (nic / "device").symlink_to(bridge / f"0000:{switch}A:00.0")
    return tmp_path


def test_the_card_behind_the_same_switch(node: Path) -> None:
    assert nearest_nics(0, str(node)) == ["mlx5_1"]
    assert nearest_nics(1, str(node)) == ["mlx5_2"]


def test_all_count_where_nothing_is_known(node: Path, tmp_path: Path) -> None:
    assert nearest_nics(2, str(node)) == ["mlx5_1", "mlx5_2"]
    assert nearest_nics(0, str(tmp_path / "nothing")) == []
