"""The rules of precedence, one by one, and their errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.coordinator.topology.infra_rank import infrastructure_rank

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
