from __future__ import annotations

import pytest

from undaunted.coordinator.topology.group import replacement_group


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
