"""How long Slurm waits before it kills."""

from __future__ import annotations

import pytest

from undaunted.services.slurm.grace import read_grace_s

CONFIG = (
    "KeepAliveTime           = SYSTEM_DEFAULT\nKillOnBadExit = 0\nKillWait                = {}\n"
)
PARTITION = "PartitionName=p\n   DisableRootJobs=NO GraceTime={} Hidden=NO\n"


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        ([CONFIG.format("30 sec"), PARTITION.format(0)], 30.0),
        ([CONFIG.format("30 sec"), PARTITION.format(20)], 20.0),
        ([CONFIG.format("30 sec"), PARTITION.format(600)], 30.0),
        ([CONFIG.format("(null)")], 0.0),
        ([], 0.0),
    ],
)
def test_the_smallest_of_what_is_known(answers: list[str], seconds: float) -> None:
    assert read_grace_s(answers) == seconds
