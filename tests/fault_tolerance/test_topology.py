"""Where this node stands: the rules of precedence, one by one, and their errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.topology import (
    cluster_uuid,
    infrastructure_rank,
    nvlink_domain,
    replacement_group,
)

if TYPE_CHECKING:
    from pathlib import Path

SRUN = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "3", "SLURM_NNODES": "4"}
ARRAY = SRUN | {"SLURM_ARRAY_TASK_ID": "2"}
BLOCK = ARRAY | {
    "SLURM_TOPOLOGY_ADDR": "block2.node07",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node",
}
CROSS = BLOCK | {"CROSS_SLURM_PROCID": "41"}
NAMED = CROSS | {"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "rack2-node013"}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"GROUP_RANK": "5"}, 5),
        ({"GROUP_RANK": "-1"}, None),
        ({"GROUP_RANK": "5"} | SRUN, 3),
        (SRUN, 3),
        (ARRAY, 2 * 4 + 3),
        (ARRAY | {"SLURM_NNODES": "", "SLURM_JOB_NUM_NODES": "5"}, 2 * 5 + 3),
        ({"SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_NUM_NODES": "1"}, 2),
        (BLOCK, 2 * 10**10 + 7),
        (BLOCK | {"SLURM_TOPOLOGY_NODES_PER_BLOCK": "18"}, 2 * 18 + 7),
        (BLOCK | {"SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}, 2 * 4 + 3),
        (BLOCK | {"SLURM_TOPOLOGY_ADDR": ""}, 2 * 4 + 3),
        (BLOCK | {"SLURM_TOPOLOGY_ADDR_PATTERN": "Block.Node"}, 2 * 10**10 + 7),
        (CROSS, 41),
        (NAMED, 2013),
        (NAMED | {"NVRX_INFRA_RANK_FROM_NODENAME": ""}, 41),
        ({"SLURM_JOB_ID": "77", "GROUP_RANK": "6"}, 6),
    ],
)
def test_the_first_rule_that_applies_decides(environ: dict[str, str], rank: int | None) -> None:
    assert infrastructure_rank(environ) == rank


def test_rules_about_names_can_be_skipped() -> None:
    assert infrastructure_rank(NAMED, skip_nodename_logic=True) == 41
    assert infrastructure_rank(BLOCK, skip_nodename_logic=True) == 2 * 4 + 3


@pytest.mark.parametrize(
    ("environ", "error", "named"),
    [
        ({"SLURM_JOB_ID": "77"}, RuntimeError, ["SLURM_JOB_ID", "'77'", "SLURM_PROCID", "srun"]),
        ({"SLURM_JOB_ID": "77", "GROUP_RANK": "-1"}, RuntimeError, ["SLURM_PROCID"]),
        ({"SLURM_PROCID": "x"}, ValueError, ["SLURM_PROCID", "'x'"]),
        ({"SLURM_PROCID": "-2"}, ValueError, ["SLURM_PROCID", "'-2'"]),
        ({"GROUP_RANK": "1.5"}, ValueError, ["GROUP_RANK", "'1.5'"]),
        ({"CROSS_SLURM_PROCID": "²"}, ValueError, ["CROSS_SLURM_PROCID"]),
        (
            ARRAY | {"SLURM_NNODES": ""},
            RuntimeError,
            ["SLURM_ARRAY_TASK_ID", "'2'", "SLURM_NNODES"],
        ),
        (ARRAY | {"SLURM_NNODES": "0"}, ValueError, ["SLURM_NNODES", "'0'"]),
        (ARRAY | {"SLURM_PROCID": ""}, RuntimeError, ["SLURM_ARRAY_TASK_ID", "SLURM_PROCID"]),
        (NAMED | {"SLURMD_NODENAME": "login"}, ValueError, ["SLURMD_NODENAME", "'login'"]),
        (NAMED | {"SLURMD_NODENAME": ""}, RuntimeError, ["SLURMD_NODENAME"]),
        (BLOCK | {"SLURM_TOPOLOGY_ADDR": "node07"}, ValueError, ["'node07'", "block.node"]),
        (BLOCK | {"SLURM_TOPOLOGY_ADDR": "a.b"}, ValueError, ["SLURM_TOPOLOGY_ADDR", "'a.b'"]),
        (BLOCK | {"SLURM_TOPOLOGY_ADDR": "a1.b2.c3"}, ValueError, ["'a1.b2.c3'"]),
        (
            BLOCK | {"SLURM_TOPOLOGY_NODES_PER_BLOCK": "7"},
            ValueError,
            ["'block2.node07'", "node 7", "SLURM_TOPOLOGY_NODES_PER_BLOCK"],
        ),
        (
            BLOCK | {"SLURM_TOPOLOGY_NODES_PER_BLOCK": "many"},
            ValueError,
            ["SLURM_TOPOLOGY_NODES_PER_BLOCK", "'many'"],
        ),
    ],
)
def test_errors_name_the_variable_and_its_value(
    environ: dict[str, str], error: type[Exception], named: list[str]
) -> None:
    with pytest.raises(error) as caught:
        infrastructure_rank(environ)
    assert all(word in str(caught.value) for word in named)


@given(st.dictionaries(st.sampled_from(sorted(NAMED)), st.text(max_size=12)), st.booleans())
def test_any_environment_gives_a_rank_none_or_a_documented_error(
    environ: dict[str, str], skip: bool
) -> None:
    try:
        rank = infrastructure_rank(environ, skip_nodename_logic=skip)
    except (ValueError, RuntimeError):
        return
    assert rank is None or rank >= 0


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


@pytest.mark.parametrize(
    ("environ", "group"),
    [
        ({}, ""),
        ({"SLURM_ARRAY_TASK_ID": "3"}, "3"),
        ({"SLURM_ARRAY_TASK_ID": "3", "NVRX_REPLACEMENT_GROUP_ID": "rack-a"}, "rack-a"),
        ({"SLURM_ARRAY_TASK_ID": "3", "NVRX_REPLACEMENT_GROUP_ID": " "}, "3"),
    ],
)
def test_the_explicit_name_goes_before_the_task_of_an_array(
    environ: dict[str, str], group: str
) -> None:
    assert replacement_group(environ) == group
