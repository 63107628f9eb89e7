"""How long Slurm waits before it kills. What Slurm prints was recorded with Slurm 22.05."""

from __future__ import annotations

import pytest

from undaunted.services.slurm.grace import read_grace_s

CONFIG = (
    "KeepAliveTime           = SYSTEM_DEFAULT\nKillOnBadExit = 0\nKillWait                = {}\n"
)
PARTITION = "PartitionName=p\n   DisableRootJobs=NO GraceTime={} Hidden=NO\n"
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2 {}\n\n# a comment\nexec undaunted srun train.py\n"


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        ({"config": CONFIG.format("30 sec"), "partition": PARTITION.format(0)}, 30.0),
        ({"config": CONFIG.format("30 sec"), "partition": PARTITION.format(20)}, 20.0),
        ({"config": CONFIG.format("30 sec"), "partition": PARTITION.format(600)}, 30.0),
        ({"config": CONFIG.format("(null)")}, 0.0),
        ({}, 0.0),
        ({"config": CONFIG.format("30 sec"), "qos": "00:00:20\n"}, 20.0),
        ({"config": CONFIG.format("30 sec"), "qos": "00:00:00\n"}, 30.0),
        ({"config": CONFIG.format("30 sec"), "qos": "\n"}, 30.0),
        ({"qos": "00:02:05\n"}, 125.0),
        ({"qos": "1-03:46:40\n"}, 100000.0),
        ({"partition": PARTITION.format(40), "qos": "00:01:00\n"}, 40.0),
        ({"config": CONFIG.format("30 sec"), "script": SCRIPT.format("--signal=TERM@10")}, 10.0),
        ({"config": CONFIG.format("30 sec"), "script": SCRIPT.format("--signal=TERM@300")}, 30.0),
    ],
)
def test_the_smallest_of_what_is_known(answers: dict[str, str], seconds: float) -> None:
    assert read_grace_s(**answers) == seconds


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ("--signal=TERM@300", 300.0),
        ("--signal TERM@300  # five minutes", 300.0),
        ("--signal=SIGTERM@300 --requeue", 300.0),
        ("--signal=15@300", 300.0),
        ("--signal=B:TERM@300", 300.0),
        ("--signal=RB:TERM@300", 300.0),
        ("--signal=TERM", 60.0),
        ("--signal=TERM@90\n#SBATCH --signal=TERM@120", 120.0),
        ("--signal=USR1@300", 0.0),  # which is the program's own
        ("# --signal=TERM@300", 0.0),
        ("\nsrun true\n#SBATCH --signal=TERM@300", 0.0),
        ("", 0.0),
    ],
)
def test_the_time_of_a_signal_before_the_time_limit(options: str, seconds: float) -> None:
    assert read_grace_s(script=SCRIPT.format(options)) == seconds
