"""Which health checks of the node the command line asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.cli.ft_options import option_name
from undaunted.health.check import Settings

if TYPE_CHECKING:
    from undaunted.cli.parse import Parsed


def health_checks(parsed: Parsed, cwd: str) -> Settings:
    """Return what is to be checked; a file of the PCI tree is relative to ``cwd``."""
    values = {
        field: parsed.values[option_name(field)]
        for field in (
            "enable_nic_healthcheck",
            "link_state_path_template",
            "enable_nic_monitor",
            "pci_topo_file",
            "link_down_path_template",
            "enable_dist_storage_healthcheck",
            "storage_healthcheck_path",
        )
    }
    topology = values["pci_topo_file"]
    return Settings(
        nic_link=values["enable_nic_healthcheck"],
        link_state_path=values["link_state_path_template"] or "",
        nic_monitor=values["enable_nic_monitor"],
        pci_topology=str(Path(cwd, topology)) if topology else "",
        link_down_path=values["link_down_path_template"] or "",
        mounts=values["enable_dist_storage_healthcheck"],
        storage_paths=tuple(filter(None, (values["storage_healthcheck_path"] or "").split(","))),
    )
