"""Where the name of the NVLink domain comes from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from undaunted.coordinator.topology.domain import cluster_uuid, nvlink_domain

if TYPE_CHECKING:
    from pathlib import Path

UUID = "1b8bd27a-1d4f-4e4e-b4a7-0a5d8c6f3e21"
GPU = """\
GPU 00000000:{number}:00.0
    Product Name                          : NVIDIA GB200
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 32766
        ClusterUUID                       : {uuid}
        Health
            Bandwidth                     : N/A
"""
ABSENT = ("/nonexistent/nvidia-smi", "-q")


def shown(*uuids: str) -> str:
    return "".join(GPU.format(number=f"{n:02}", uuid=uuid) for n, uuid in enumerate(uuids))


@pytest.mark.parametrize(
    ("text", "uuid"),
    [
        ("", ""),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n", ""),
        (shown(UUID), UUID),
        (shown(UUID.upper(), UUID), UUID),
        (shown("N/A", UUID), UUID),
        (shown("N/A"), ""),
        (shown("00000000-0000-0000-0000-000000000000"), ""),
        (shown(UUID, "2" + UUID[1:]), ""),  # no one domain
    ],
)
def test_cluster_uuid_of_all_gpus(text: str, uuid: str) -> None:
    assert cluster_uuid(text) == uuid


def test_the_program_is_asked(tmp_path: Path) -> None:
    (tmp_path / "shown").write_text(shown(UUID))
    assert nvlink_domain({}, "n1", query=("cat", str(tmp_path / "shown"))) == UUID


def test_without_the_program_a_node_has_a_domain_of_its_own() -> None:
    assert nvlink_domain({}, "n1", query=ABSENT) == ""


def test_a_program_that_hangs_is_not_waited_for() -> None:
    started = time.monotonic()
    assert nvlink_domain({}, "n1", query=("sleep", "60"), deadline_s=0.05) == ""
    assert time.monotonic() - started < 30


def test_the_variable_goes_first(tmp_path: Path) -> None:
    environ = {
        "UNDAUNTED_NVLINK_DOMAIN": " rack-7 ",
        "UNDAUNTED_NVLINK_DOMAIN_FILE": str(tmp_path / "absent"),
    }
    assert nvlink_domain(environ, "n1", query=ABSENT) == "rack-7"


def test_a_file_names_the_domains_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "domains"
    path.write_text("# racks\nn1 rack-1\n\nn2\track-2  # new\n")
    environ = {"UNDAUNTED_NVLINK_DOMAIN_FILE": str(path)}
    found = [nvlink_domain(environ, node, query=ABSENT) for node in ("n1", "n2", "n3")]
    assert found == ["rack-1", "rack-2", ""]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, ["cannot be read"]),
        (b"n1 rack-1 extra\n", ["line 1", "'n1 rack-1 extra'"]),
        (b"\xff\xfe", ["cannot be read"]),
        (b"#" * (5 << 20), ["cannot be read"]),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, named: list[str]
) -> None:
    path = tmp_path / "domains"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="UNDAUNTED_NVLINK_DOMAIN_FILE") as caught:
        nvlink_domain({"UNDAUNTED_NVLINK_DOMAIN_FILE": str(path)}, "n1", query=ABSENT)
    assert all(word in str(caught.value) for word in [str(path), *named])
