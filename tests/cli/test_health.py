from __future__ import annotations

import pytest

from undaunted.cli.health import health_checks
from undaunted.cli.parse import UsageError, parse
from undaunted.health.check import Settings


def asked(*options: str) -> Settings:
    return health_checks(parse([*options, "train.py"], {}), "/work")


def test_by_default_only_links_of_nics_and_gpus() -> None:
    assert asked() == Settings()


def test_everything() -> None:
    settings = asked(
        "--ft-enable-nic-healthcheck=false",
        "--ft-link-state-path-template=/s/{nic}",
        "--ft-enable-nic-monitor",
        "--ft-pci-topo-file=topo.xml",
        "--ft-link-down-path-template=/d/{dev_name}",
        "--ft-enable-dist-storage-healthcheck",
        "--ft_storage_health_check_path=/a, /b",
    )
    assert settings == Settings(
        nic_link=False,
        link_state_path="/s/{nic}",
        nic_monitor=True,
        pci_topology="/work/topo.xml",
        link_down_path="/d/{dev_name}",
        mounts=True,
        storage_paths=("/a", "/b"),
    )


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--ft-link-state-path-template=/s/state", "lacks {nic}"),
        ("--ft-link-down-path-template=/s/{nic}", "lacks {dev_name}"),
        ("--ft-storage-health-check-path=data", "absolute"),
        ("--ft-storage-health-check-path=,", "names no path"),
    ],
)
def test_what_makes_no_sense(option: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem.replace("{", r"\{")):
        asked(option)
